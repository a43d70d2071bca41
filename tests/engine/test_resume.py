"""A run that was stopped goes on where it was, and ends with the same bits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import farfield
from engine_tasks import FailsOn, Logged, Product, add, add_in_place, features, identical, seeded_normal
from farfield.engine import Checkpoint, TaskError, fingerprint, local, tiles
from farfield.errors import InvalidValueError

N, HEIGHT = 20, 4
COVER = tiles(N, height=HEIGHT, symmetric=True)


def empty():
    return torch.full((N, N), torch.nan, dtype=torch.float64)


@pytest.fixture(params=[1, 3], ids=lambda n: f"{n}-workers")
def any_engine(request):
    return local(request.param)


def test_fill_after_an_error(tmp_path, any_engine):
    task = Product(features(N))
    expected = local().fill(empty(), task, COVER, symmetric=True)
    checkpoint = Checkpoint(tmp_path, fingerprint(task, COVER))
    first = Logged(FailsOn(task, COVER[6]))
    with pytest.raises(TaskError):
        any_engine.fill(empty(), first, COVER, symmetric=True, checkpoint=checkpoint)
    finished = set(first.calls) - {COVER[6]}
    assert len(list(tmp_path.glob("*.result"))) == len(finished)
    again, told = Logged(task), []
    out = any_engine.fill(
        empty(), again, COVER, symmetric=True, checkpoint=checkpoint, progress=lambda *t: told.append(t)
    )
    assert set(again.calls) == set(COVER) - finished and len(again.calls) == len(set(again.calls))
    assert identical(out, expected)
    assert told[-1] == (len(COVER), len(COVER))
    never = Logged(task)
    assert identical(any_engine.fill(empty(), never, COVER, symmetric=True, checkpoint=checkpoint), expected)
    assert never.calls == []


@pytest.mark.parametrize("combine", [add, add_in_place])
@pytest.mark.parametrize("stop", range(1, 14))
def test_reduce_after_an_error_at_every_place(tmp_path, stop, combine):
    expected = local().reduce(seeded_normal, range(14), add)
    checkpoint = Checkpoint(tmp_path, fingerprint("reduce"))
    with pytest.raises(TaskError):
        local().reduce(FailsOn(seeded_normal, stop), range(14), combine, checkpoint=checkpoint)
    assert len(list(tmp_path.glob("*.result"))) == stop.bit_count()
    again, told = Logged(seeded_normal), []
    total = local(2).reduce(
        again, range(14), combine, checkpoint=checkpoint, progress=lambda *t: told.append(t)
    )
    assert sorted(again.calls) == list(range(stop, 14))
    assert told[0] == (stop, 14) and told[-1] == (14, 14)
    assert identical(total, expected)
    never = Logged(seeded_normal)
    assert identical(local().reduce(never, range(14), combine, checkpoint=checkpoint), expected)
    assert never.calls == []


def test_reduce_with_a_damaged_partial_result(tmp_path):
    expected = local().reduce(seeded_normal, range(13), add)
    checkpoint = Checkpoint(tmp_path, fingerprint("reduce"))
    local().reduce(seeded_normal, range(13), add, checkpoint=checkpoint)
    path = checkpoint._path(("reduction", 8, 12))
    path.write_bytes(path.read_bytes()[:-1])
    again = Logged(seeded_normal)
    assert identical(local().reduce(again, range(13), add, checkpoint=checkpoint), expected)
    assert again.calls == [8, 9, 10, 11, 12]


def test_stream_after_an_error(tmp_path, any_engine):
    expected = local().reduce(seeded_normal, range(14), add)
    checkpoint = Checkpoint(tmp_path, fingerprint("stream"))
    with pytest.raises(TaskError):
        any_engine.stream(iter(range(14)), FailsOn(seeded_normal, 9), add, checkpoint=checkpoint)
    again = Logged(seeded_normal)
    assert identical(any_engine.stream(iter(range(14)), again, add, checkpoint=checkpoint), expected)
    assert sorted(again.calls) == list(range(9, 14))
    with pytest.raises(TaskError) as caught:
        any_engine.stream(iter(range(20)), FailsOn(seeded_normal, 17), add, checkpoint=checkpoint)
    assert caught.value.item == 17, "batches are counted from the start of the stream"


def test_fewer_items_than_the_checkpoint_has(tmp_path):
    checkpoint = Checkpoint(tmp_path, fingerprint("reduce"))
    local().reduce(seeded_normal, range(5), add, checkpoint=checkpoint)
    with pytest.raises(InvalidValueError, match="first 5 items, and now there are only 3"):
        local().reduce(seeded_normal, range(3), add, checkpoint=checkpoint)
    with pytest.raises(InvalidValueError, match="first 5 items, and now there are only 3"):
        local().stream(iter(range(3)), seeded_normal, add, checkpoint=checkpoint)


# ------------------------------------------------------------------ a real kill

KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from engine_tasks import KilledOn, Logged, Product, features
from farfield.engine import Checkpoint, fingerprint, local, tiles

folder, log, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
task, cover = Product(features(20)), tiles(20, height=4, symmetric=True)
checkpoint = Checkpoint(folder, fingerprint(task, cover))
if moment == "in a task":
    run = KilledOn(task, cover[6])
else:  # a result is on disk and not yet in its place
    run, replace = task, Path.replace
    def replace_or_die(part, path):
        if len(list(folder.glob("*.result"))) == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(part, path)
    Path.replace = replace_or_die
out = torch.empty(20, 20, dtype=torch.float64)
local().fill(out, Logged(run, file=log), cover, symmetric=True, checkpoint=checkpoint)
"""


@pytest.mark.parametrize("moment", ["in a task", "in a write"])
def test_fill_after_a_kill(tmp_path, moment):
    task, folder, log = Product(features(N)), tmp_path / "checkpoint", tmp_path / "log"
    paths = [str(Path(farfield.__file__).parents[1]), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("FARFIELD_CHECK_SHAPES", None)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), str(log), moment],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert log.read_text().splitlines() == [str(tile) for tile in COVER[:7]]
    assert len(list(folder.glob("*.part"))) == (1 if moment == "in a write" else 0)
    checkpoint = Checkpoint(folder, fingerprint(task, COVER))
    again = Logged(task)
    out = local().fill(empty(), again, COVER, symmetric=True, checkpoint=checkpoint)
    assert again.calls == list(COVER[6:])
    assert identical(out, local().fill(empty(), task, COVER, symmetric=True))
