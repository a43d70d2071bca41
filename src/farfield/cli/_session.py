"""Before and around the work of a command: where output will go is checked, and an interrupt says what is kept."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from farfield.errors import InvalidValueError

if TYPE_CHECKING:
    from farfield._budget import Clock

__all__ = [
    "check_files",
    "check_folder",
    "print_json",
    "saying_what_is_kept",
    "stopping_at_interrupt",
    "write_text",
]


def check_files(*paths: Path | None) -> None:
    """Raise unless every file can be written: before the work, which may take hours, not after it."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise InvalidValueError(
                f"{str(path)!r} is a folder; the output is a file. Give the name of a file."
            )
        if not path.parent.is_dir():
            raise InvalidValueError(
                f"There is no folder {str(path.parent)!r} to write {path.name!r} to. Create it first."
            )
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise InvalidValueError(f"{str(path)!r} can't be written: the place is read-only.")


def check_folder(path: Path | None) -> None:
    """Raise unless the folder can be made and written to."""
    if path is None:
        return
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        raise InvalidValueError(f"{str(there)!r} is a file; the output is a folder. Give another place.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidValueError(f"{str(path)!r} can't be written: {str(there)!r} is read-only.")


def print_json(value: Any) -> None:
    """Print a record of numbers and tables on one line."""
    from farfield.report._data import plain

    typer.echo(json.dumps(plain(value), ensure_ascii=False))


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, and say so."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        # An error while writing knows no name.
        raise OSError(error.errno, error.strerror, str(path)) from error
    typer.echo(f"wrote {path}", err=True)


@contextlib.contextmanager
def saying_what_is_kept(words: str | None) -> Iterator[None]:
    """On an interrupt, say what is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {words or 'nothing is kept'}", err=True)
        raise


@contextlib.contextmanager
def stopping_at_interrupt(clock: Clock) -> Iterator[list[str]]:
    """The first interrupt ends the search, and what was found by then is kept; a second one ends the program.

    The list holds a sentence that says so, once it has happened.
    """
    said: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield said
        return

    def stop(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        clock.stop()
        said.append(
            f"Interrupted after {clock.elapsed:.0f} s: the best bounds by then. More time may tighten them."
        )

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield said
    finally:
        signal.signal(signal.SIGINT, before)
