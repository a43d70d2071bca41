"""Worker processes: asked one model at a time, ended when one takes too long, replaced when one dies."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

from farfield.errors import FarfieldError

__all__ = ["Children", "WorkerError", "children"]

_START = 600.0
"""Seconds a process may take to import torch: a machine may be busy."""
_TRIES = 3
"""Processes that a request is given to; one that was idle may go just as it is asked."""


class WorkerError(FarfieldError, RuntimeError):
    """A worker process could not be started, or the run was ended; nothing is said about a model."""


class _GoneError(Exception):
    """The process had gone before it took the request."""


class _Child:
    """One worker process."""

    def __init__(self) -> None:
        self._talk = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(p for p in sys.path if p)),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", "from farfield.audit._worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._talk,
            env=environment,
            start_new_session=True,  # an interrupt is for the parent, which ends its children
        )
        self._expired = False
        self.usable = True
        try:
            if not self._receive(_START):
                raise WorkerError(
                    f"A worker process did not start: {self._last_words() or self._how_it_ended()}."
                )
        except BaseException:
            self.end()
            raise

    def ask(self, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """The row of a request, within a time limit; raise _GoneError if the process was no more."""
        assert self._process.stdin is not None
        begun = time.monotonic()
        self._talk.seek(0)
        self._talk.truncate()
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self.usable = False
            raise _GoneError from None
        row: dict[str, Any] = {}
        stage = ""
        while True:
            reply = self._receive(limit - (time.monotonic() - begun))
            if "done" in reply:
                done: dict[str, Any] = reply["done"]
                return done
            if not reply:
                break
            stage, row = str(reply["stage"]), reply.get("row", row)
        if not stage and not self._expired:
            self.usable = False
            raise _GoneError
        failure = ("WorkerDied", self._epitaph())
        if self._expired:
            failure = ("TimeLimit", f"Ended after {limit:g} s, the limit for one model.")
        seconds = time.monotonic() - begun
        return {
            **row,
            "stage": stage or "load",
            "error": failure[0],
            "message": failure[1],
            "seconds": seconds,
        }

    def kill(self) -> None:
        """End the process; whoever waits for its reply sees that there is none."""
        self.usable = False
        self._process.kill()

    def end(self) -> None:
        """End the process and let go of it; for whoever holds it, since pipes are closed."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._talk):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was still to be written to a dead process
                    pipe.close()

    def _receive(self, limit: float) -> dict[str, Any]:
        """The next reply; empty if there is none within the limit or the process has died."""
        assert self._process.stdout is not None
        timer = threading.Timer(max(limit, 0.0), self._expire)
        timer.daemon = True
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line.endswith(b"\n") or self._expired:
            self.usable = False
            self._process.kill()
            self._process.wait()
            return {}
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _expire(self) -> None:
        self._expired = True
        self._process.kill()

    def _epitaph(self) -> str:
        words = self._last_words()
        return f"The process that audited it ended: {self._how_it_ended()}." + (
            f" It said: {words}" if words else ""
        )

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = "unknown"
            return f"killed by signal {-code} ({name})" + (", as when memory runs out" if code == -9 else "")
        return f"exit code {code}"

    def _last_words(self) -> str:
        size = self._talk.seek(0, os.SEEK_END)
        self._talk.seek(max(0, size - 4096))
        lines = self._talk.read().decode("utf-8", "replace").strip().splitlines()
        fatal = [line for line in lines if "Error" in line or "error" in line]
        return (fatal or lines or [""])[-1][:300]


class Children:
    """Worker processes of one run in this process: started when asked for, used again, ended together.

    Safe to ask from several threads; each has a process of its own meanwhile.
    """

    def __init__(self) -> None:
        # Re-entrant: an interrupt may close it in the thread that is inside.
        self._lock = threading.RLock()
        self._idle: list[_Child] = []
        self._busy: list[_Child] = []
        self._closed = False

    def ask(self, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """The row of a request: from a worker, or about the worker's end."""
        for _ in range(_TRIES):
            child = self._take()
            row = None
            try:
                with contextlib.suppress(_GoneError):
                    row = child.ask(request, limit)
            except BaseException:
                child.kill()  # in the middle of a reply: nobody can talk to it any more
                raise
            finally:
                self._give_back(child)
            if self._closed:
                raise WorkerError("The run was ended.")
            if row is not None:
                return row
        message = f"{_TRIES} worker processes ended before they took it."
        return {"stage": "load", "error": "WorkerDied", "message": message, "seconds": 0.0}

    def close(self) -> None:
        """End all workers, busy ones too."""
        with self._lock:
            self._closed = True
            for child in self._busy:
                child.kill()  # its thread lets go of it
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()

    def _take(self) -> _Child:
        with self._lock:
            if self._closed:
                raise WorkerError("The run was ended.")
            if self._idle:
                self._busy.append(self._idle.pop())
                return self._busy[-1]
        child = _Child()
        with self._lock:
            self._busy.append(child)
        if self._was_closed():  # while it started
            self._give_back(child)
            raise WorkerError("The run was ended.")
        return child

    def _was_closed(self) -> bool:
        return self._closed

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            self._busy.remove(child)
            if child.usable and not self._closed:
                self._idle.append(child)
                return
        child.end()


@functools.cache
def children(run: str) -> Children:
    """The workers of a run in this process: a task that an engine sends around finds them by the run's name."""
    return Children()
