"""A progress bar for work that takes long enough to want one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from farfield.engine._engine import Progress

__all__ = ["bar"]


@contextlib.contextmanager
def bar(description: str, *, after: float = 2.0) -> Iterator[Progress]:
    """A progress callback drawn as a bar on stderr, which appears only if the work lasts and goes when it ends.

    Nothing is written if stderr is not a terminal.

    Parameters
    ----------
    description
        What is being done.
    after
        Seconds before it appears.

    Examples
    --------
    >>> from farfield.engine import local
    >>> with bar("kernel") as progress:
    ...     list(local().map(abs, [-1, 2], progress=progress))
    [(-1, 1), (2, 2)]
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # stdout is left alone: rich would send what is printed there to stderr.
    bars = Bars(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    task = bars.add_task(description, total=None)

    def advance(done: int, total: int) -> None:
        bars.update(task, completed=done, total=total)

    # A timer, not a look at the clock in the callback: the first result may be a minute away.
    timer = threading.Timer(after, bars.start)
    timer.daemon = True
    if console.is_interactive:
        timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()  # it may be drawing at this moment
        if bars.live.is_started:
            bars.stop()
