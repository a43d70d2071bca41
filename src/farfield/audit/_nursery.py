"""A process that has imported everything and forks workers: one that died is replaced in milliseconds, not seconds.

The nursery reads nothing of anybody's. It alone ends workers, each with its whole process group, and lets go of one
only afterwards, so a number that it ends is never another's. Requests and answers go over a socket that workers do
not have: JSON, one object a message; files of a new worker are sent along.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from farfield.audit import _sandbox

__all__ = ["Nursery", "serve", "tail"]

_LOOK = 0.05
"""Seconds between looks at whether a worker has ended."""
_PROGRAM = "from farfield.audit._nursery import serve; serve(sys.argv[1], int(sys.argv[2]))"


def serve(limits: str, number: int) -> None:
    """Fork and end workers until the other end of the socket is closed."""
    from farfield.audit._worker import main, rehearse

    with contextlib.suppress(Exception):  # a worker that finds nothing prepared is only slower
        rehearse()
    line = socket.socket(fileno=number)
    living: set[int] = set()
    while True:
        ready, _, _ = select.select([line], [], [], _LOOK if living else None)
        for worker in [w for w in living if _has_ended(w)]:
            _end_group(worker)
            _, status = os.waitpid(worker, 0)
            living.discard(worker)
            _tell(line, {"ended": worker, "code": os.waitstatus_to_exitcode(status)})
        if not ready:
            continue
        message, files, _, _ = socket.recv_fds(line, 4096, 3)
        if not message:
            for worker in living:
                _end_group(worker)
            os._exit(0)
        request = json.loads(message)
        if "end" in request:
            if request["end"] in living:
                _end_group(request["end"])
            continue
        worker = os.fork()
        if worker == 0:
            _work(main, limits, line, files)
        for file in files:
            os.close(file)
        living.add(worker)
        _tell(line, {"begun": worker})


def _work(main: Callable[[str], None], limits: str, line: socket.socket, files: Sequence[int]) -> NoReturn:
    """What a forked worker does: leave everything of the nursery's, then serve."""
    try:
        os.setsid()
        line.close()
        for target, file in enumerate(files):
            os.dup2(file, target)
        os.closerange(3, max(files) + 1)
        main(limits)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _tell(line: socket.socket, message: dict[str, Any]) -> None:
    try:
        line.send(json.dumps(message).encode())
    except OSError:
        os._exit(0)


def _has_ended(worker: int) -> bool:
    """Not let go of yet: its group keeps its number."""
    return os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_group(worker: int) -> None:
    for end in (os.killpg, os.kill):  # it may not have a group of its own yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(worker, signal.SIGKILL)


class Nursery:
    """The process that forks workers, started when the first is asked for and again if it was lost."""

    def __init__(self, limits: str, *, sandbox: bool) -> None:
        self.limits, self.sandbox = limits, sandbox
        self._asking = threading.Lock()
        self._talk = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self._news = threading.Condition()
        self._line: socket.socket | None = None
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._begun: list[int] = []
        self._codes: dict[int, int] = {}
        self._living: set[int] = set()

    def fork(self, files: Sequence[int], seconds: float) -> int | None:
        """A new worker with these as its standard input, output and error; None if there is none in time."""
        end = time.monotonic() + seconds
        with self._asking:
            for _ in range(2):  # a nursery that was lost is known when it is asked
                if self._closed:
                    break
                line = self._line or self._start()
                with contextlib.suppress(OSError):
                    socket.send_fds(line, [b'{"fork": true}'], list(files))
                    with self._news:
                        while not self._begun and self._line is line:
                            left = end - time.monotonic()
                            if left <= 0:
                                break
                            self._news.wait(left)
                        if self._begun:
                            return self._begun.pop()
                self._lost(line)
        return None

    def end(self, number: int) -> None:
        """End a worker and all it started, if it has not ended."""
        line = self._line
        if line is not None and self.code(number, 0.0) is None:
            with contextlib.suppress(OSError):
                line.send(json.dumps({"end": number}).encode())

    def code(self, number: int, seconds: float) -> int | None:
        """The exit code of a worker, below 0 for a signal; None if the system does not let go of it in time."""
        with self._news:
            self._news.wait_for(lambda: number in self._codes, seconds)
            return self._codes.get(number)

    def forget(self, number: int) -> None:
        """Nobody asks for this worker any more."""
        with self._news:
            self._codes.pop(number, None)

    def close(self) -> None:
        """End the nursery and its workers."""
        self._closed = True
        line, process = self._line, self._process
        if line is not None:
            self._lost(line)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10.0)
            if process.poll() is None:
                process.kill()
                process.wait()

    def last_words(self) -> str:
        """What the process said last, or how it ended."""
        lines = tail(self._talk).splitlines()
        code = None if self._process is None else self._process.poll()
        return lines[-1] if lines else "" if code is None else f"exit code {code}"

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(p for p in sys.path if p)),
        }
        program = f"import sys\n{_PROGRAM}"
        if self.sandbox:  # its text, not an import: that would start threads
            source = Path(_sandbox.__file__).read_text(encoding="utf-8")
            program = f"{source}\nimport json, sys\nenter(json.loads(sys.argv[1])['writable'])\n{_PROGRAM}"
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", program, self.limits, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._talk,
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # an interrupt is for the parent, which ends its children
        )
        theirs.close()
        self._line = ours
        threading.Thread(target=self._listen, args=(ours,), daemon=True).start()
        return ours

    def _listen(self, line: socket.socket) -> None:
        while True:
            try:
                message = line.recv(4096)
            except OSError:
                message = b""
            if not message:
                break
            news = json.loads(message)
            with self._news:
                if "begun" in news:
                    self._codes.pop(news["begun"], None)
                    self._begun.append(news["begun"])
                    self._living.add(news["begun"])
                else:
                    self._codes[news["ended"]] = news["code"]
                    self._living.discard(news["ended"])
                self._news.notify_all()
        self._lost(line)

    def _lost(self, line: socket.socket) -> None:
        """The nursery has gone, and its workers with it."""
        with self._news:
            if self._line is line:
                self._line = None
                self._codes.update(dict.fromkeys(self._living, -int(signal.SIGKILL)))
                self._living.clear()
                self._begun.clear()
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
                line.close()
            self._news.notify_all()


def tail(file: IO[bytes]) -> str:
    """The end of what a process has written to a file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 4096))
    return file.read().decode("utf-8", "replace").strip()
