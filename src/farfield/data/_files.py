"""Where a dataset's files are: a folder of yours, the one beside the checkout, the cache, or their source."""

from __future__ import annotations

import hashlib
import lzma
import os
from pathlib import Path
from typing import Any

from farfield.data._catalogue import WEIGHTS, File, info
from farfield.errors import FarfieldError, InvalidValueError, MissingExtraError, UnknownNameError

__all__ = ["DataError", "cache_folder", "fetch", "find", "folders", "is_here", "weights_file"]


class DataError(FarfieldError, FileNotFoundError):
    """A dataset is neither here nor to be had; the message says where it was looked for and what to do."""


def cache_folder() -> Path:
    """Where fetched files are kept: ``FARFIELD_CACHE``, or ``farfield`` in the user's cache folder."""
    given = os.environ.get("FARFIELD_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "farfield"


def folders() -> tuple[Path, ...]:
    """Where files are looked for, in order: FARFIELD_DATA, ``shared/data`` beside the checkout, the cache."""
    found = [Path(os.environ["FARFIELD_DATA"])] if os.environ.get("FARFIELD_DATA") else []
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file():
        found.append(checkout.parent / "shared" / "data")
    return (*found, cache_folder())


def find(name: str, forms: tuple[File, ...]) -> Path:
    """The path of one file of a dataset, in whichever of its forms it is here, its hash checked.

    Raises
    ------
    DataError
        If it is nowhere.
    """
    for folder in folders():
        for file in forms:
            path = folder / file.path
            if path.is_file():
                _check(path, file)
                return path
    places = ", ".join(str(folder) for folder in folders())
    how = (
        f"Run: farfield data fetch {name}"
        if any(file.url for file in forms)
        else f"It can't be fetched: set FARFIELD_DATA to a folder that has it (see: farfield data info {name})"
    )
    wanted = " or ".join(file.path for file in forms)
    raise DataError(f"The dataset {name!r} needs {wanted}, not found in {places}. {how}")


def is_here(name: str) -> bool:
    """Whether every file of a dataset is found."""
    try:
        for forms in info(name).files:
            find(name, forms)
    except DataError:
        return False
    return True


def weights_file(name: str) -> Path:
    """Where the weights of a pretrained network lie, their hash checked.

    Raises
    ------
    DataError
        If they are nowhere: where they were looked for, and how to get them.
    """
    if name not in WEIGHTS:
        raise UnknownNameError("set of weights", name, WEIGHTS)
    (forms,) = info(name).files
    return find(name, forms)


def _check(path: Path, file: File) -> None:
    kind, _, digest = file.digest.partition(":")
    raw = path.read_bytes()
    if hashlib.new(kind, lzma.decompress(raw) if path.suffix == ".xz" else raw).hexdigest() != digest:
        raise InvalidValueError(
            f"{path} is not the file it should be: its {kind} differs from the catalogue's. Remove it and "
            f"fetch it again."
        )


def fetch(name: str, *, progress: bool = True) -> tuple[Path, ...]:
    """Download what is missing of a dataset into the cache, check it, and return the paths of all its files.

    Parameters
    ----------
    name
        Of the catalogue.
    progress
        Whether to draw a bar.

    Raises
    ------
    MissingExtraError
        If pooch is not installed.
    DataError
        If a file is missing and has no source to fetch from.
    """
    return tuple(_fetched(name, forms, progress) for forms in info(name).files)


def _fetched(name: str, forms: tuple[File, ...], progress: bool) -> Path:
    try:
        return find(name, forms)
    except DataError:
        source = next((file for file in forms if file.url), None)
        if source is None:
            raise
    target = cache_folder() / source.path
    found = _pooch().retrieve(
        source.url, known_hash=source.digest, path=target.parent, fname=target.name, progressbar=progress
    )
    return Path(found)


def _pooch() -> Any:
    try:
        import pooch
    except ImportError as error:
        raise MissingExtraError("Fetching a dataset", "pooch", "data") from error
    return pooch
