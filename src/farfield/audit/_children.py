"""Workers: asked one model at a time, ended with all they started when one takes too long, then forked anew."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from farfield.audit._nursery import Nursery, tail
from farfield.errors import FarfieldError

__all__ = ["Children", "Limits", "WorkerError", "children"]

_START = 600.0
"""Seconds a process may take to import torch: a machine may be busy."""
_TRIES = 3
"""Processes that a request is given to; one that was idle may go just as it is asked."""
_LOOK = 0.1
"""Seconds between looks at whether the process has died, while somebody it forked holds its pipe open."""
_PARTING = 10.0
"""Seconds to wait for a process that was killed."""
_LONGEST = 1 << 26
"""Bytes of a reply; more is not a reply."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker process may do.

    Parameters
    ----------
    memory
        Bytes of address space for a model, beside what the bare process has. None: no limit.
    sandbox
        Whether it runs without network and with a read-only file system.
    writable
        Folders that it may write to in the sandbox.
    """

    memory: int | None = None
    sandbox: bool = False
    writable: tuple[str, ...] = ()


class WorkerError(FarfieldError, RuntimeError):
    """A worker process could not be started, or the run was ended; nothing is said about a model."""


class _GoneError(Exception):
    """The process had gone before it took the request."""


class _Child:
    """One worker process, in a session and a process group of its own: what it starts ends with it."""

    def __init__(self, nursery: Nursery) -> None:
        self._talk = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        given, self._requests = os.pipe()
        self._replies, told = os.pipe()
        try:
            worker = nursery.fork([given, told, self._talk.fileno()], _START)
        finally:
            os.close(given)
            os.close(told)
        if worker is None:
            self._close_files()
            raise WorkerError(f"A worker process did not start: {nursery.last_words()}.")
        self._worker, self._nursery = worker, nursery
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)
        self._received = b""
        self._expired = False
        self.usable = True
        try:
            if not self._receive(time.monotonic() + _START):
                raise WorkerError(
                    f"A worker process did not start: {self._last_words() or self._how_it_ended()}."
                )
        except BaseException:
            self.end()
            raise

    def ask(self, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """The row of a request, within a time limit; raise _GoneError if the process was no more."""
        begun = time.monotonic()
        end = begun + limit
        self._talk.seek(0)
        self._talk.truncate()
        row: dict[str, Any] = {}
        stage = ""
        if self._send(json.dumps(request).encode() + b"\n", end):
            while reply := self._receive(end):
                if "done" in reply:
                    done: dict[str, Any] = reply["done"]
                    return done
                stage, row = str(reply["stage"]), reply.get("row", row)
        self.usable = False
        if not stage and not self._expired:
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
        """End the process and all it started; whoever waits for its reply sees that there is none."""
        self.usable = False
        self._nursery.end(self._worker)

    def end(self) -> None:
        """End the process and let go of it; for whoever holds it, since pipes are closed."""
        self.kill()
        self._wait()
        self._nursery.forget(self._worker)
        self._close_files()

    def _close_files(self) -> None:
        if not self._talk.closed:  # once: a number that was closed may be another's
            self._talk.close()
            os.close(self._requests)
            os.close(self._replies)

    def _wait(self) -> int:
        """How it ended; one that the system does not let go of, as when a disk has gone, is left behind."""
        code = self._nursery.code(self._worker, _PARTING)
        return -int(signal.SIGKILL) if code is None else code

    def _send(self, content: bytes, end: float) -> bool:
        """Whether the process took the request in time."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._requests, selectors.EVENT_WRITE)
            while content:
                if not self._look(ready, end):
                    return False
                try:
                    content = content[os.write(self._requests, content) :]
                except BlockingIOError:
                    continue
                except OSError:
                    self.kill()
                    return False
        return True

    def _receive(self, end: float) -> dict[str, Any]:
        """The next reply; empty if there is none in time, it is not one, or the process has died."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._replies, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not self._look(ready, end):
                    return {}
                with contextlib.suppress(BlockingIOError):
                    block = os.read(self._replies, 1 << 16)
                    self._received += block
                    if not block or len(self._received) > _LONGEST:
                        self.kill()
                        return {}
        line, _, self._received = self._received.partition(b"\n")
        with contextlib.suppress(ValueError):
            reply = json.loads(line)
            if isinstance(reply, dict) and {"ready", "stage", "done"} & set(reply):
                return reply
        self.kill()  # somebody else wrote to the pipe
        return {}

    def _look(self, ready: selectors.BaseSelector, end: float) -> bool:
        """Whether there is something to read or to write; ends the process when its time is over, or it has died."""
        while True:
            left = end - time.monotonic()
            if left <= 0:
                self._expired = True
                self.kill()
                return False
            dead = self._died()
            if ready.select(0 if dead else min(left, _LOOK)):
                return True
            if dead:
                self.kill()  # those that it forked
                return False

    def _died(self) -> bool:
        """Whether the process has ended."""
        return not self.usable or self._nursery.code(self._worker, 0.0) is not None

    def _epitaph(self) -> str:
        words = self._last_words()
        return f"The process that audited it ended: {self._how_it_ended()}." + (
            f" It said: {words}" if words else ""
        )

    def _how_it_ended(self) -> str:
        code = self._wait()
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = "unknown"
            return f"killed by signal {-code} ({name})" + (", as when memory runs out" if code == -9 else "")
        return f"exit code {code}"

    def _last_words(self) -> str:
        lines = tail(self._talk).splitlines()
        fatal = [line for line in lines if "Error" in line or "error" in line]
        return (fatal or lines or [""])[-1][:300]


class Children:
    """Worker processes of one run in this process: started when asked for, used again, ended together.

    Safe to ask from several threads; each has a process of its own meanwhile.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        # Re-entrant: an interrupt may close it in the thread that is inside.
        self._lock = threading.RLock()
        limits = limits or Limits()
        self._nursery = Nursery(json.dumps(asdict(limits)), sandbox=limits.sandbox)
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
        self._nursery.close()

    def _take(self) -> _Child:
        with self._lock:
            if self._closed:
                raise WorkerError("The run was ended.")
            if self._idle:
                self._busy.append(self._idle.pop())
                return self._busy[-1]
        try:
            child = _Child(self._nursery)
        except WorkerError:
            if self._was_closed():
                raise WorkerError("The run was ended.") from None
            raise
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
def children(run: str, limits: Limits) -> Children:
    """The workers of a run in this process: a task that an engine sends around finds them by the run's name."""
    return Children(limits)
