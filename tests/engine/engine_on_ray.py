"""The engine on a real cluster of two workers: bits, order, errors, deaths, spilling, a driver that is killed."""

import operator
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from engine_tasks import FailsOn, Logged, Product, add, add_in_place, features, identical, seeded_normal
from farfield import kernels
from farfield.engine import Checkpoint, TaskError, Tile, fingerprint, local, ray, tiles
from farfield.engine._schedule import AHEAD
from farfield.errors import InvalidValueError
from farfield.ntk import empirical_ntk
from ray_tests import require_namespace

N, HEIGHT = 20, 4
COVER = tiles(N, height=HEIGHT, symmetric=True)
STORE = 80_000_000


@pytest.fixture(scope="module")
def cluster():
    require_namespace()
    with ray(workers=2, store=STORE) as engine:
        yield engine


def empty():
    return torch.full((N, N), torch.nan, dtype=torch.float64)


@dataclass(frozen=True)
class DiesOnce:
    """Another task, except that its worker is gone the first time an item comes."""

    task: object
    item: object
    mark: Path
    always: bool = False

    def __call__(self, item):
        if item == self.item and (self.always or not self.mark.exists()):
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.task(item)


def lines(file):
    return file.read_text().splitlines()


# ------------------------------------------------------------------ the same bits


def test_map_in_order_and_lazily(cluster, tmp_path):
    def sleepy(item):
        time.sleep(0.01 * ((7 * item) % 5))
        return item * item

    assert list(cluster.map(sleepy, range(12))) == [(i, i * i) for i in range(12)]
    assert list(cluster.map(sleepy, [])) == []
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield taken[-1]

    def marked(item):
        (tmp_path / str(item)).touch()
        return item

    results = cluster.run(marked, endless())
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    results.close()
    # An item is taken when any other has ended, in whichever order they end.
    assert len(taken) <= len(list(tmp_path.iterdir())) + 2 * cluster.workers
    assert len(taken) <= 3 + AHEAD * cluster.workers


def test_fill_reduce_and_stream(cluster, tmp_path):
    task = Product(features(N))
    expected = local().fill(empty(), task, COVER, symmetric=True)
    told = []
    out = cluster.fill(empty(), task, COVER, symmetric=True, progress=lambda *at: told.append(at))
    assert identical(out, expected) and told == [(i, len(COVER)) for i in range(len(COVER) + 1)]
    for combine in (add, add_in_place):
        total = local().reduce(seeded_normal, range(21), combine)
        assert identical(cluster.reduce(seeded_normal, range(21), combine), total)
        assert identical(cluster.stream(iter(range(21)), seeded_normal, combine), total)


def test_kernels_and_tangent_kernels(cluster):
    x = features(300, 5)
    for layer_norm in ("first", None):
        k = kernels.mlp(depth=3, layer_norm=layer_norm, bias_var=0.1)
        assert identical(k.ntk(x, engine=cluster, memory="1MB"), k.ntk(x, memory="1MB"))
    model = nn.Sequential(nn.Linear(5, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 2)).double().eval()
    for method in ("layerwise", "jacobian"):
        here = empirical_ntk(model, x[:40], method=method, memory="200kB")
        there = empirical_ntk(model, x[:40], method=method, memory="200kB", engine=cluster)
        assert identical(here, there), method


def test_settings_of_the_caller_hold_in_workers(cluster):
    def settings(_):
        threads = torch.get_num_threads(), int(os.environ["OMP_NUM_THREADS"])
        return *threads, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.ones(1).dtype

    assert next(cluster.run(settings, [0])) == (1, 1, True, False, torch.float32)
    with torch.inference_mode():
        assert next(cluster.run(settings, [0])) == (1, 1, False, True, torch.float32)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            assert next(cluster.run(settings, [0])) == (1, 1, False, False, torch.float64)
    finally:
        torch.set_default_dtype(before)


def test_operands_are_sent_once_and_read_in_place(cluster):
    big = torch.ones(3_000_000)  # 12 MB: eight copies would not fit the store
    task = lambda item: (float(big[item]), big.data_ptr() != 0)  # noqa: E731
    assert [r for _, r in cluster.map(task, range(16))] == [(1.0, True)] * 16


def test_results_may_be_written_to(cluster):
    for _, result in cluster.map(seeded_normal, range(3)):
        result.add_(1)


# ------------------------------------------------------------------ faults


def test_an_error_names_its_item_and_is_not_retried(cluster, tmp_path):
    log = tmp_path / "log"
    with pytest.raises(TaskError, match=r"failed on 5: ZeroDivisionError: poisoned") as caught:
        list(cluster.map(Logged(FailsOn(abs, 5), file=log), range(12)))
    assert caught.value.item == 5 and isinstance(caught.value.__cause__, ZeroDivisionError)
    assert lines(log).count("5") == 1
    with pytest.raises(TaskError) as caught:
        cluster.stream(iter(range(12)), FailsOn(abs, 5), operator.add)
    assert caught.value.item == 5
    tile = Tile((0, 2), (2, 4))
    with pytest.raises(TaskError) as caught:
        cluster.fill(torch.zeros(4, 4), FailsOn(lambda t: torch.zeros(t.shape), tile), tiles(4, height=2))
    assert caught.value.item == tile


def test_what_cannot_be_sent_back_is_reported(cluster):
    with pytest.raises(TaskError, match="failed on 1: TypeError: cannot pickle"):
        list(cluster.map(lambda _: threading.Lock(), [1]))

    class UnpicklableError(Exception):
        def __init__(self, lock):
            super().__init__("held")
            self.lock = lock

    def fails(_):
        raise UnpicklableError(threading.Lock())

    with pytest.raises(TaskError, match="UnpicklableError: held"):
        list(cluster.map(fails, [1]))
    weights = torch.ones(2, requires_grad=True)
    with pytest.raises(InvalidValueError, match="gradient does not pass"):
        list(cluster.map(lambda item, w=weights * 2: w * item, [1]))
    with pytest.raises(TaskError, match="gradient does not pass"):
        list(cluster.map(lambda item: weights * item, [1]))


def test_an_interrupt_in_a_task_passes_through(cluster):
    def interrupted(item):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(cluster.map(interrupted, [1]))


def test_a_killed_worker_costs_one_tile(cluster, tmp_path):
    victim = int.from_bytes(os.urandom(1)) % len(COVER)
    task, log = Product(features(N)), tmp_path / "log"
    dying = DiesOnce(task, COVER[victim], tmp_path / "mark")
    out = cluster.fill(empty(), Logged(dying, file=log), COVER, symmetric=True)
    assert identical(out, local().fill(empty(), task, COVER, symmetric=True))
    assert sorted(lines(log)) == sorted([*map(str, COVER), str(COVER[victim])])


def test_a_task_that_kills_its_workers_is_given_up(tmp_path, cluster):
    engine, log = ray(workers=2, retries=1), tmp_path / "log"
    deadly = Logged(DiesOnce(abs, 3, tmp_path / "mark", always=True), file=log)
    checkpoint = Checkpoint(tmp_path / "checkpoint", fingerprint("deadly"))
    with pytest.raises(TaskError, match="its worker was lost, 2 times") as caught:
        list(engine.map(deadly, range(8), checkpoint=checkpoint))
    assert caught.value.item == 3 and lines(log).count("3") == 2
    # What was finished is there, and is not computed again.
    finished = {i for i in range(8) if checkpoint.load(i) is not None}
    assert {0, 1, 2} <= finished and 3 not in finished
    again = tmp_path / "again"
    assert [r for _, r in engine.map(Logged(abs, file=again), range(8), checkpoint=checkpoint)] == [*range(8)]
    assert set(lines(again)) == {str(i) for i in range(8)} - {str(i) for i in finished}


def test_more_than_the_store_holds(cluster):
    """Items and results of 32 MB, up to eight at once, in a store of 80 MB."""
    size = 4_000_000
    batches = (torch.full((size,), float(i), dtype=torch.float64) for i in range(6))
    total = cluster.stream(batches, lambda batch: batch * 2, add_in_place)
    assert identical(total, torch.full((size,), 30.0, dtype=torch.float64))
    from ray._private.worker import _global_node

    logs = Path(_global_node.get_logs_dir_path())
    assert list(logs.glob("*spill_worker*")), "nothing was spilled: the store was not full"


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from engine_tasks import Logged, Product, features
from farfield.engine import Checkpoint, fingerprint, ray, tiles

folder, log = Path(sys.argv[1]), Path(sys.argv[2])
task, cover = Product(features(20)), tiles(20, height=4, symmetric=True)
checkpoint = Checkpoint(folder, fingerprint(task, cover))

def progress(done, total):
    if done == 6:
        os.kill(os.getpid(), signal.SIGKILL)

out = torch.empty(20, 20, dtype=torch.float64)
ray(sys.argv[3], workers=2).fill(
    out, Logged(task, file=log), cover, symmetric=True, checkpoint=checkpoint, progress=progress
)
"""


def test_a_killed_driver_goes_on(cluster, tmp_path):
    """The second process joins the same cluster by its address and is killed; this one goes on."""
    import ray as library

    task, folder, log = Product(features(N)), tmp_path / "checkpoint", tmp_path / "log"
    address = library.get_runtime_context().gcs_address
    environment = {name: value for name, value in os.environ.items() if name != "FARFIELD_CHECK_SHAPES"}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), str(log), address],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    while len(lines(log)) != len(list(folder.glob("*.result"))):  # its workers may still be writing
        time.sleep(0.2)
    checkpoint = Checkpoint(folder, fingerprint(task, COVER))
    finished = lines(log)
    assert 6 <= len(finished) < len(COVER)
    again = tmp_path / "again"
    out = cluster.fill(empty(), Logged(task, file=again), COVER, symmetric=True, checkpoint=checkpoint)
    assert sorted(lines(again) + finished) == sorted(map(str, COVER))
    assert identical(out, local().fill(empty(), task, COVER, symmetric=True))


def test_a_command_joins_the_cluster_of_the_environment(cluster, tmp_path):
    import ray as library

    (tmp_path / "x.csv").write_text("1,2\n3,4\n5,7\n")
    told = {**os.environ, "RAY_ADDRESS": library.get_runtime_context().gcs_address}
    told.pop("FARFIELD_CHECK_SHAPES", None)
    here, there = (
        subprocess.run(
            [sys.executable, "-m", "farfield", "kernel", "x.csv", "--json", "--engine", name],
            env=told, cwd=tmp_path, capture_output=True, text=True, check=True,
        ).stdout
        for name in ("local", "ray")
    )  # fmt: skip
    assert here == there and '"values"' in here


def test_the_cluster_is_used_as_it_is(cluster):
    with ray(workers=2) as second:
        assert list(second.map(abs, [-1])) == [(-1, 1)]
    assert list(cluster.map(abs, [-2])) == [(-2, 2)], "the second engine left a cluster it had not started"
    with pytest.raises(
        InvalidValueError, match=r"needs as many cores of one machine, and the largest .* has 2"
    ):
        list(ray(threads=3).map(abs, [1]))


# ------------------------------------------------------------------ residents


@dataclass(frozen=True)
class Scale:
    file: Path

    def __call__(self, item):
        with self.file.open("a") as file:
            print(item, file=file)
        return lambda v: seeded_normal(item) * v


def test_residents_prepare_once(cluster, tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    with cluster.resident(Scale(there), range(9)) as far, local().resident(Scale(here), range(9)) as near:
        for v in (torch.tensor(0.3), torch.tensor(-7.0)):
            assert identical(far.reduce(v, add_in_place), near.reduce(v, add_in_place))
            assert all(map(identical, far.run(v), near.run(v)))
    assert sorted(lines(there)) == sorted(lines(here)) == [str(i) for i in range(9)]


@dataclass(frozen=True)
class DyingResident:
    mark: Path

    def __call__(self, item):
        def call(v):
            if item == 3 and v == 2 and not self.mark.exists():
                self.mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if v == 3:
                raise ZeroDivisionError("poisoned")
            return item * v

        return call


def test_residents_come_back(cluster, tmp_path):
    with cluster.resident(DyingResident(tmp_path / "mark"), range(6)) as kept:
        for v in (1, 2):
            assert list(kept.run(v)) == [item * v for item in range(6)]
        with pytest.raises(TaskError, match="failed on 0: ZeroDivisionError: poisoned") as caught:
            list(kept.run(3))
        assert caught.value.item == 0
    assert (tmp_path / "mark").exists()


# ------------------------------------------------------------------ blocks


def test_many_items_are_combined_by_the_workers(cluster, tmp_path):
    """300 items in blocks of four: 75 results come here."""
    combined = tmp_path / "combined"

    def combine(left, right):
        with combined.open("a") as file:
            print(os.getpid(), file=file, flush=True)
        return left.add_(right)

    told = []
    total = cluster.reduce(seeded_normal, range(300), combine, progress=lambda *at: told.append(at))
    assert identical(total, local().reduce(seeded_normal, range(300), add))
    assert told == [(i, 300) for i in range(301)]
    here = lines(combined).count(str(os.getpid()))
    assert here == 74 and len(lines(combined)) == 299


def test_a_poisoned_and_a_deadly_item_among_many(cluster, tmp_path):
    log = tmp_path / "log"
    checkpoint = Checkpoint(tmp_path / "checkpoint", fingerprint("many"))
    poisoned = Logged(FailsOn(seeded_normal, 205), file=log)
    with pytest.raises(TaskError, match=r"failed on 205: ZeroDivisionError: poisoned") as caught:
        cluster.reduce(poisoned, range(300), add_in_place, checkpoint=checkpoint)
    assert caught.value.item == 205 and lines(log).count("205") == 1
    deadly = DiesOnce(seeded_normal, 205, tmp_path / "deadly", always=True)
    with pytest.raises(TaskError, match="its worker was lost, 2 times") as caught:
        ray(workers=2, retries=1).reduce(deadly, range(300), add_in_place, checkpoint=checkpoint)
    assert caught.value.item == 205
    again = tmp_path / "again"
    dying = Logged(DiesOnce(seeded_normal, 250, tmp_path / "dying"), file=again)
    total = cluster.reduce(dying, range(300), add_in_place, checkpoint=checkpoint)
    assert identical(total, local().reduce(seeded_normal, range(300), add))
    assert sorted(map(int, lines(again))) == sorted([*range(204, 300), 250])


def test_an_error_while_combining(cluster):
    def combine(left, right):
        raise ValueError("shapes")

    with pytest.raises(TaskError, match="items 0 to 3, which are combined': ValueError: shapes"):
        cluster.reduce(abs, range(300), combine)
