"""What breaks on a cluster, many times over: every run must end with the right bits and repeat only unfinished work.

    python -m benchmarks.ray_faults [--runs N] [--faults worker raise spill driver] [--out FOLDER]

Two workloads take turns: a matrix of tangent kernels in tiles, and Nyström sums over Parquet files.

worker   at a random moment the worker that began a task last is killed. It must cost one tile or piece at most.
raise    a random tile or piece raises. The error must name it, nothing is tried again, and the run that goes on with
         a sound task computes what was not finished.
spill    the object store is smaller than what is in it at once, in amounts that differ. Some of it must be spilled.
driver   the calling process, which started the cluster, is killed at a random moment. Another goes on from the
         checkpoint, once the first's workers are gone. In the end no process of any cluster may be left.

Ray opens sockets, here on 127.0.0.1 alone: run it where that is permitted, or in a network namespace with nothing
else (``unshare -n``, then ``ip link set lo up``). Ends with 1 if a run failed. Writes a record of every run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._records import save_record
from farfield import engine, kernels, regression
from farfield._provenance import provenance

FAULTS = ("worker", "raise", "spill", "driver")
ROWS, HEIGHT, D = 3072, 256, 9
PIECES, PIECE, LANDMARKS = 160, 4096, 300
UNDER_WAY = 2 * 2 + 2 * 2
"""Items that a run may lose, if it is stopped: two for each worker, and two unfinished blocks of two."""
COLUMNS = [f"x{i}" for i in range(D)]


@dataclass(frozen=True)
class Logged:
    """A task, or a kernel, that notes who began what, and may fail on one item."""

    log: Path
    poisoned: str = ""

    def begin(self, item: object) -> None:
        """One line, written at once."""
        with self.log.open("a") as file:
            print(f"{os.getpid()} {item}", file=file, flush=True)
        if str(item) == self.poisoned:
            raise ZeroDivisionError("poisoned")

    def begun(self) -> list[tuple[int, str]]:
        """(process, item) of every beginning so far."""
        text = self.log.read_text() if self.log.exists() else ""
        pairs = [line.split(" ", 1) for line in text.splitlines()]
        return [(int(pair[0]), pair[1]) for pair in pairs if len(pair) == 2]


def kernel() -> kernels.KernelFunction:
    return kernels.mlp(depth=3, layer_norm="first", bias_var=0.1).function("ntk")


@dataclass(frozen=True)
class KernelTile(Logged):
    """A tile of a tangent kernel."""

    def __call__(self, tile: engine.Tile) -> Tensor:
        """Its entries."""
        self.begin(tile)
        x = torch.randn(ROWS, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return kernel()(x[tile.row_slice], x[tile.column_slice])


@dataclass(frozen=True)
class KernelOfPieces(Logged):
    """A kernel that knows a piece by its first entry, which numbers it."""

    def __call__(self, x1: Tensor, x2: Tensor | None = None) -> Tensor:
        """As any kernel."""
        if float(x1[0, -1]).is_integer() and float(x1[0, -1]) >= 1000:
            self.begin(int(x1[0, -1]) - 1000)
        return kernel()(x1, x2)

    def diagonal(self, x: Tensor) -> Tensor:
        """As any kernel."""
        return kernel().diagonal(x)

    def sup_diagonal(self) -> float:
        """As any kernel."""
        return kernel().sup_diagonal()


@dataclass(frozen=True)
class Tiles:
    """The matrix in tiles."""

    folder: Path
    name: str = "tiles"

    @property
    def items(self) -> list[str]:
        """What is noted of each."""
        return [str(tile) for tile in self._cover()]

    @staticmethod
    def _cover() -> tuple[engine.Tile, ...]:
        return tuple(engine.tiles(ROWS, height=HEIGHT, symmetric=True))

    def run(self, where: engine.Engine, log: Path, poisoned: str = "") -> Tensor:
        """The result, from wherever a run before left off."""
        checkpoint = engine.Checkpoint(self.folder / "tiles", engine.fingerprint("faults"))
        out = torch.empty(ROWS, ROWS, dtype=torch.float64)
        task = KernelTile(log, poisoned)
        return where.fill(out, task, self._cover(), symmetric=True, checkpoint=checkpoint)

    def unfinished(self) -> set[str]:
        """What the checkpoint does not hold."""
        checkpoint = engine.Checkpoint(self.folder / "tiles", engine.fingerprint("faults"))
        return {str(tile) for tile in self._cover() if checkpoint.load(tile) is None}


@dataclass(frozen=True)
class Pieces:
    """Nyström sums over Parquet files, one row group each."""

    folder: Path
    name: str = "pieces"

    @property
    def items(self) -> list[str]:
        """What is noted of each."""
        return [str(number) for number in range(PIECES)]

    def run(self, where: engine.Engine, log: Path, poisoned: str = "") -> Tensor:
        """The result, from wherever a run before left off."""
        files = self.folder.parent / "rows"
        write_pieces(files)
        generator = torch.Generator().manual_seed(1)
        landmarks = torch.randn(LANDMARKS, D, generator=generator, dtype=torch.float64)
        model = regression.Nystrom(KernelOfPieces(log, poisoned), landmarks)
        regression.stream_parquet(
            model, files, COLUMNS, "y", engine=where, rows=PIECE, checkpoint=self.folder / "sums"
        )
        return model.solve(noise=1e-2).weights


def write_pieces(folder: Path) -> None:
    """Once."""
    if (folder / "whole").exists():
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    random_state = np.random.default_rng(0)
    for number in range(PIECES):
        x = random_state.normal(size=(PIECE, D))
        x[0, -1] = 1000 + number
        table = pa.table({name: x[:, i] for i, name in enumerate(COLUMNS)} | {"y": np.sin(x[:, 0])})
        pq.write_table(table, folder / f"{number:04d}.parquet")
    (folder / "whole").touch()


def check(condition: bool, text: str) -> None:
    """One of the things a run must show."""
    if not condition:
        raise AssertionError(text)


def again(counted: Counter[str]) -> int:
    """How many beginnings were not the first of their item."""
    return sum(counted.values()) - len(counted)


def trial_worker(
    work: Tiles | Pieces, expected: Tensor, chance: random.Random, cluster: engine.Engine
) -> dict[str, Any]:
    log = Logged(work.folder / "log")
    moment = chance.randrange(1, len(work.items))
    killed: list[int] = []

    def kill() -> None:
        while len(log.begun()) < moment:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.1)  # anywhere in a task, or between two
        killed.append(log.begun()[-1][0])
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    out = work.run(cluster, log.log)
    thread.join()
    counted = Counter(item for _, item in log.begun())
    check(torch.equal(out, expected), "other bits")
    check(set(counted) == set(work.items), "an item was not computed")
    check(again(counted) <= 1, f"{again(counted)} items were computed again, and one worker was lost")
    return {"killed after": moment, "computed again": again(counted)}


def trial_raise(
    work: Tiles | Pieces, expected: Tensor, chance: random.Random, cluster: engine.Engine
) -> dict[str, Any]:
    log, second = Logged(work.folder / "log"), Logged(work.folder / "second")
    poisoned = chance.choice(work.items)
    try:
        work.run(cluster, log.log, poisoned)
    except engine.TaskError as error:
        named = str(error)
    else:
        raise AssertionError("a poisoned item did not stop the run")
    known = poisoned if isinstance(work, Tiles) else f"{int(poisoned):04d}.parquet"
    check(known in named and "ZeroDivisionError: poisoned" in named, f"the error does not say what: {named}")
    first = Counter(item for _, item in log.begun())
    check(first[poisoned] == 1 and again(first) == 0, "something was tried again")
    left = work.unfinished() if isinstance(work, Tiles) else None
    out = work.run(cluster, second.log)
    then = Counter(item for _, item in second.begun())
    check(torch.equal(out, expected), "other bits")
    check(
        again(then) == 0 and poisoned in then,
        "the second run computed something twice, or not what was missing",
    )
    if left is not None:
        check(set(then) == left, "the second run computed what was finished, or not what was unfinished")
    else:
        check(len(set(then) & set(first)) <= UNDER_WAY, "more than what was under way was computed again")
    return {"poisoned": poisoned, "finished before": len(first) - 1, "computed after": len(then)}


class Swell:
    """A large result from a small item: more than the store holds."""

    def __init__(self, numbers: int) -> None:
        self.numbers = numbers

    def __call__(self, item: int) -> Tensor:
        """Random numbers of this item."""
        generator = torch.Generator().manual_seed(item)
        return torch.randn(self.numbers, generator=generator, dtype=torch.float64)


def add(left: Tensor, right: Tensor) -> Tensor:
    return left + right


def trial_spill(
    work: Tiles | Pieces, expected: Tensor, chance: random.Random, cluster: engine.Engine
) -> dict[str, Any]:
    numbers = chance.randrange(3_000_000, 6_000_000)  # 24 to 48 MB, in a store of 80
    task, items = Swell(numbers), range(chance.randrange(8, 14))
    batches = [torch.full((numbers,), float(i), dtype=torch.float64) for i in range(5)]
    log = Logged(work.folder / "log")
    with engine.ray("local", workers=2, store=80_000_000) as small:
        total = small.reduce(task, items, add)
        streamed = small.stream(iter(batches), torch.sin, add)
        out = work.run(small, log.log)
        from ray._private.worker import _global_node

        logs = Path(_global_node.get_logs_dir_path())
        spilled = len(list(logs.glob("*spill_worker*")))
    check(torch.equal(total, engine.local().reduce(task, items, add)), "other bits of a reduction")
    check(
        torch.equal(streamed, engine.local().stream(iter(batches), torch.sin, add)), "other bits of a stream"
    )
    check(torch.equal(out, expected), "other bits")
    check(spilled > 0, "nothing was spilled: the store was not full")
    check(again(Counter(item for _, item in log.begun())) == 0, "something was computed again")
    return {"megabytes a result": round(numbers * 8 / 1e6), "results": len(items)}


def trial_driver(
    work: Tiles | Pieces, expected: Tensor, chance: random.Random, cluster: engine.Engine
) -> dict[str, Any]:
    log, second = Logged(work.folder / "log"), Logged(work.folder / "second")
    moment = chance.randrange(0, len(work.items))
    command = [sys.executable, "-m", "benchmarks.ray_faults", "--drive", work.name, str(work.folder)]
    child = subprocess.Popen(command, start_new_session=True)
    while len(log.begun()) < moment:
        check(child.poll() is None, "the calling process ended before it was killed")
        time.sleep(0.002)
    time.sleep(chance.random() * 0.1)
    child.kill()
    child.wait()
    alive = ray_processes(30.0, but="Agent")  # those write nothing, and take up to a minute to notice
    check(not alive, f"processes of a cluster whose owner is gone: {alive}")
    begun = {item for _, item in log.begun()}
    left = work.unfinished() if isinstance(work, Tiles) else None
    with engine.ray("local", workers=2) as another:
        out = work.run(another, second.log)
    then = Counter(item for _, item in second.begun())
    check(torch.equal(out, expected), "other bits")
    check(again(then) == 0, "something was computed twice")
    if left is not None:
        check(set(then) == left, "what was finished was computed again, or not what was unfinished")
    else:
        check(len(set(then) & begun) <= UNDER_WAY, "more than what was under way was computed again")
    return {"killed after": moment, "begun before": len(begun), "computed after": len(then)}


def ray_processes(seconds: float, but: str = "nothing") -> list[str]:
    """Commands of Ray's processes that are still there after so many seconds; returns as soon as there are none.

    Of this network namespace: a cluster elsewhere is somebody else's.
    """
    end, network = time.monotonic() + seconds, os.readlink("/proc/self/ns/net")
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "ns" / "net") == network:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if command.startswith("ray::") or "raylet" in command or "gcs_server" in command:
                        found.append(command[:60].strip())
        found = [command for command in found if but not in command]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.1)


TRIALS = {"worker": trial_worker, "raise": trial_raise, "spill": trial_spill, "driver": trial_driver}
WORKLOADS = {"tiles": Tiles, "pieces": Pieces}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, help="of each fault")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--out", type=Path, help="folder for the record of every run")
    parser.add_argument("--drive", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.drive:
        name, folder = options.drive
        with engine.ray("local", workers=2) as cluster:
            WORKLOADS[name](Path(folder)).run(cluster, Path(folder) / "log")
        return
    record: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        expected = {}
        for name, make in WORKLOADS.items():
            (folder := Path(scratch) / name).mkdir()
            expected[name] = make(folder).run(engine.local(), folder / "log")
        for fault in options.faults:
            with contextlib.ExitStack() as stack:
                cluster = engine.ray("local", workers=2)
                if fault in ("worker", "raise"):  # all runs on one; the others have clusters of their own
                    stack.enter_context(cluster)
                for number in range(options.runs):
                    chance = random.Random(f"{fault} {number}")
                    name = ("tiles", "pieces")[number % 2]
                    (folder := Path(scratch) / f"{fault}{number}").mkdir()
                    work = WORKLOADS[name](folder)
                    row: dict[str, Any] = {"run": number, "work": name}
                    try:
                        row |= {"ok": True, **TRIALS[fault](work, expected[name], chance, cluster)}
                    except (AssertionError, engine.TaskError) as error:
                        row |= {"ok": False, "why": str(error)}
                    record.setdefault(fault, []).append(row)
                    print(fault, row, flush=True)
    if left := ray_processes(120.0):
        print("left:", left)
    for fault, rows in record.items():
        print(f"{fault:8} {sum(row['ok'] for row in rows)} of {len(rows)}")
    if options.out is not None:
        settings = {"rows": ROWS, "height": HEIGHT, "pieces": PIECES, "piece": PIECE, "landmarks": LANDMARKS}
        path = options.out / "ray_faults.json"
        content = {"runs": record, "provenance": provenance(settings, seed=0)}
        save_record(content, path)
    sys.exit(0 if not left and all(row["ok"] for rows in record.values() for row in rows) else 1)


if __name__ == "__main__":
    main()
