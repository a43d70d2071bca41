"""What every engine must do, whatever its workers: order, trees, tiles, streams, errors, interrupts."""

import gc
import operator
import os
import pickle
import signal
import threading
import time
import weakref
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_tasks import (
    FailsOn,
    Logged,
    Product,
    add,
    add_in_place,
    features,
    identical,
    seeded_normal,
)
from farfield.engine import (
    Checkpoint,
    Engine,
    LocalEngine,
    RayEngine,
    TaskError,
    Tile,
    engine,
    fingerprint,
    local,
    ray,
    tiles,
)
from farfield.engine._schedule import AHEAD
from farfield.errors import FarfieldError, InvalidValueError, UnknownNameError

WORKERS = [1, 3]


@pytest.fixture(params=WORKERS, ids=lambda n: f"{n}-workers")
def any_engine(request):
    return local(request.param)


def sleepy(item):
    """Later items end sooner."""
    time.sleep(0.004 * ((7 * item) % 5))
    return item * item


# ------------------------------------------------------------------ map


def test_map_is_in_order_whoever_ends_first(any_engine):
    assert list(any_engine.map(sleepy, range(25))) == [(i, i * i) for i in range(25)]
    assert list(any_engine.map(sleepy, [])) == []


def test_map_is_lazy_and_looks_ahead_a_little(any_engine):
    logged = Logged(sleepy)
    results = any_engine.map(logged, range(50))
    assert next(results) == (0, 0)
    results.close()
    calls = len(logged.calls)
    assert calls <= (1 if any_engine.workers == 1 else 2 * any_engine.workers)
    time.sleep(0.05)
    assert len(logged.calls) == calls, "work went on after the iterator was closed"


def test_three_workers_work_at_once():
    """Three tasks that each wait for the two others."""
    barrier = threading.Barrier(3, timeout=60)
    assert [r for _, r in local(3).map(lambda _: barrier.wait() >= 0, range(9))] == [True] * 9


@pytest.mark.parametrize("workers", WORKERS)
def test_torch_threads_of_a_task(workers):
    """Within the tasks alone: not in the caller, nor in threads that are started later, nor after an error."""

    def in_a_new_thread():
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        return seen[0]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        engine = local(workers, threads=3)
        found = engine.map(lambda item: torch.get_num_threads(), range(5))
        assert next(found) == (0, 3) and torch.get_num_threads() == 2
        assert [n for _, n in found] == [3] * 4
        assert torch.get_num_threads() == in_a_new_thread() == 2
        with pytest.raises(TaskError):
            list(engine.map(FailsOn(abs, 2), range(5)))
        assert torch.get_num_threads() == in_a_new_thread() == 2
    finally:
        torch.set_num_threads(before)


def test_one_thread_a_task_has_the_bits_of_one_thread():
    before = torch.get_num_threads()
    parts = [features(200_000, seed=k) for k in range(4)]  # torch adds these up in another order with two
    try:
        torch.set_num_threads(1)
        alone = local().reduce(_total, parts, add)
        torch.set_num_threads(2)
        assert all(identical(local(w, threads=1).reduce(_total, parts, add), alone) for w in WORKERS)
    finally:
        torch.set_num_threads(before)


def _total(x):
    return x.sum().reshape(1)


@pytest.mark.full
def test_what_waits_is_dropped_when_the_iterator_is_closed():
    """Of four items under way two are running and held up, and one waits."""
    gate, started = threading.Event(), []

    def held_up(item):
        started.append(item)
        return item == 0 or gate.wait(60)

    results = local(2).map(held_up, range(100))
    next(results)
    while len(started) < 3:
        time.sleep(0.001)
    threading.Timer(1.0, gate.set).start()
    results.close()
    assert gate.is_set(), "closed before the running tasks ended"
    assert sorted(started) == [0, 1, 2]


def test_progress_ends_at_the_total(any_engine):
    for n in (0, 1, 5):
        told = []
        list(any_engine.map(sleepy, range(n), progress=lambda *t: told.append(t)))  # noqa: B023
        assert told == [(i, n) for i in range(n + 1)]


def test_gradient_mode_reaches_the_workers(any_engine):
    def doubled(x):
        return 2 * x, torch.is_inference_mode_enabled()

    x = torch.ones(1, requires_grad=True)
    for mode, gradient, inference in [
        (torch.enable_grad(), True, False),
        (torch.no_grad(), False, False),
        (torch.inference_mode(), False, True),
    ]:
        with mode:
            ((_, (y, inside)),) = any_engine.map(doubled, [x])
        assert (y.requires_grad, inside) == (gradient, inference)


# ------------------------------------------------------------------ reduce


def reference_tree(values, combine):
    """Levels of pairs over aligned blocks; what is left over joins from the right."""
    blocks, start = [], 0
    for size in (2**k for k in reversed(range(20))):
        if len(values) - start >= size:
            level = values[start : start + size]
            while len(level) > 1:
                level = [combine(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
            blocks.append(level[0])
            start += size
    total = blocks.pop()
    while blocks:
        total = combine(blocks.pop(), total)
    return total


def bracket(left, right):
    return f"({left}{right})"


@given(st.integers(1, 70))
def test_reduce_follows_the_fixed_tree(n):
    expected = reference_tree([str(i) for i in range(n)], bracket)
    assert local().reduce(str, range(n), bracket) == expected
    assert local(2).reduce(str, range(n), bracket) == expected
    assert local().stream(iter(range(n)), str, bracket) == expected


def test_the_order_matters_to_the_bits_of_a_sum():
    """So that the next test can fail: another order gives other bits."""
    tree = local().reduce(seeded_normal, range(37), add)
    running = sum(seeded_normal(i) for i in range(37))
    assert not identical(tree, running)
    assert torch.allclose(tree, running, rtol=1e-4, atol=1.0)


@pytest.mark.parametrize("combine", [add, add_in_place])
def test_reduce_has_the_same_bits_for_any_number_of_workers(combine):
    expected = reference_tree([seeded_normal(i) for i in range(37)], add)
    for workers in (1, 2, 3, 5):
        assert identical(local(workers).reduce(seeded_normal, range(37), combine), expected)
        assert identical(local(workers).stream(iter(range(37)), seeded_normal, combine), expected)


def test_reduce_holds_few_partial_results():
    live, most = weakref.WeakSet(), [0]

    class Partial:
        def __init__(self):
            live.add(self)
            most[0] = max(most[0], len(live))

    local().reduce(lambda _: Partial(), range(1000), lambda left, right: Partial())
    assert most[0] <= 10 + 4  # log₂ 1000, and the hands they pass through


def test_a_reduction_of_nothing_is_refused(any_engine):
    with pytest.raises(InvalidValueError, match="at least one item"):
        any_engine.reduce(str, [], bracket)
    with pytest.raises(InvalidValueError, match="at least one item"):
        any_engine.stream(iter([]), str, bracket)


# ------------------------------------------------------------------ stream


class Batch:
    """Counts how many of its kind are alive."""

    live: ClassVar[weakref.WeakSet] = weakref.WeakSet()

    def __init__(self, number):
        self.number = number
        Batch.live.add(self)


def test_stream_holds_few_batches(any_engine):
    gc.collect()
    assert not Batch.live
    seen = []

    def made(number):
        batch = Batch(number)
        seen.append(len(Batch.live))  # a batch that is kept too long shows while the next is made
        return batch

    def source():
        for number in range(200):
            yield made(number)

    def task(batch):
        seen.append(len(Batch.live))
        return batch.number

    assert any_engine.stream(source(), task, operator.add) == sum(range(200))
    assert len(seen) == 400
    assert max(seen) <= (1 if any_engine.workers == 1 else 2 * any_engine.workers)


def test_stream_takes_from_an_endless_source_only_what_it_needs(any_engine):
    taken, begun = [], []

    def endless():
        while True:
            taken.append(len(taken))
            yield taken[-1]

    def seen(item):
        begun.append(item)
        return abs(item)

    with pytest.raises(TaskError) as caught:
        any_engine.stream(endless(), FailsOn(seen, 10), operator.add)
    assert caught.value.item == 10
    # A thread that is held up lets the others go on: how far depends on the machine, within the engine's bound.
    assert len(taken) <= len(begun) + 1 + 2 * any_engine.workers
    assert len(taken) <= 11 + (1 if any_engine.workers == 1 else AHEAD * any_engine.workers)


def test_stream_tells_a_total_where_there_is_one(any_engine):
    told = []
    any_engine.stream([1, 2, 3], abs, operator.add, progress=lambda *t: told.append(t))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    told.clear()
    any_engine.stream(iter([1, 2, 3]), abs, operator.add, progress=lambda *t: told.append(t))
    assert told == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_an_error_of_the_source_is_its_own(any_engine):
    def broken():
        yield 1
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        any_engine.stream(broken(), abs, operator.add)


# ------------------------------------------------------------------ fill


@given(st.integers(1, 17), st.integers(1, 17), st.integers(1, 8), st.integers(1, 8), st.sampled_from(WORKERS))
def test_tiled_is_untiled(n, m, height, width, workers):
    """Entries are single products of integers, so exact whatever the block."""
    x, y = torch.arange(1.0, n + 1), torch.arange(1.0, m + 1)

    def outer(tile: Tile) -> torch.Tensor:
        return x[tile.row_slice, None] * y[None, tile.column_slice]

    out = torch.full((n, m), torch.nan)
    given_back = local(workers).fill(out, outer, tiles(n, m, height=height, width=width))
    assert given_back is out
    assert identical(out, x[:, None] * y)


def test_the_task_of_the_next_test_is_not_symmetric():
    x = features(17)
    whole = Product(x)(Tile((0, 17), (0, 17)))
    assert not torch.equal(whole, whole.mT) and torch.allclose(whole, whole.mT, rtol=1e-12)


@given(st.integers(1, 17), st.integers(1, 8), st.sampled_from(WORKERS), st.integers(0, 5))
def test_symmetric_fill_mirrors_every_bit(n, height, workers, seed):
    task = Product(features(n, seed=seed))
    out = torch.full((n, n), torch.nan, dtype=torch.float64)
    logged = Logged(task)
    local(workers).fill(out, logged, tiles(n, height=height, symmetric=True), symmetric=True)
    assert all(t.rows[0] <= t.columns[0] for t in logged.calls)
    assert identical(out, out.mT.contiguous())
    blocks = local().fill(torch.empty_like(out), task, tiles(n, height=height))
    assert identical(out.triu(), blocks.triu())


def test_mirror_keeps_signed_zeros_and_nans():
    block = torch.tensor([[1.0, -0.0], [0.0, torch.nan]])
    out = local().fill(torch.empty(2, 2), lambda _: block, [Tile((0, 2), (0, 2))], symmetric=True)
    assert identical(out, torch.tensor([[1.0, -0.0], [-0.0, torch.nan]]))
    row = torch.tensor([[-0.0, torch.inf]])
    local().fill(out := torch.zeros(3, 3), lambda _: row, [Tile((0, 1), (1, 3))], symmetric=True)
    assert identical(out[1:, 0], row[0])


def test_fill_with_leading_axes():
    """Two matrices at once."""
    x = features(7)
    task = Product(x)

    def pair(tile: Tile) -> torch.Tensor:
        return torch.stack([task(tile), -task(tile)])

    out = local().fill(
        torch.empty(2, 7, 7, dtype=torch.float64), pair, tiles(7, height=3, symmetric=True), symmetric=True
    )
    assert identical(out, out.mT.contiguous())
    assert identical(out[0], -out[1])


def test_fill_a_memory_map(tmp_path, any_engine):
    task, cover = Product(features(9)), tiles(9, height=4, symmetric=True)
    path = tmp_path / "matrix.npy"
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(9, 9))
    given_back = any_engine.fill(array, task, cover, symmetric=True)
    expected = local().fill(torch.empty(9, 9, dtype=torch.float64), task, cover, symmetric=True)
    assert identical(given_back, expected)
    assert np.array_equal(np.load(path), expected.numpy())
    with pytest.raises(InvalidValueError, match="read-only"):
        any_engine.fill(np.load(path, mmap_mode="r"), task, cover)


def test_fill_leaves_the_rest_alone():
    out = torch.zeros(4, 4)
    local().fill(out, lambda tile: torch.ones(tile.shape), [Tile((1, 2), (0, 3))])
    assert out.sum() == 3 and out[1, :3].sum() == 3


@pytest.mark.parametrize(
    ("out", "tile", "symmetric", "message"),
    [
        (torch.zeros(3), Tile((0, 1), (0, 1)), False, r"shape \(\.\.\., rows, columns\)"),
        (torch.zeros(3, 4), Tile((0, 1), (0, 1)), True, "fills a square matrix"),
        (torch.zeros(3, 4), Tile((0, 4), (0, 1)), False, "inside the matrix"),
        (torch.zeros(3, 4), Tile((0, 1), (3, 5)), False, "inside the matrix"),
        (torch.zeros(4, 4), Tile((2, 4), (0, 2)), True, "wholly above"),
        (torch.zeros(4, 4), Tile((0, 2), (1, 3)), True, "wholly above"),
    ],
)
def test_fill_refuses_before_any_work(out, tile, symmetric, message):
    logged = Logged(lambda tile: torch.zeros(tile.shape))
    with pytest.raises(InvalidValueError, match=message):
        local().fill(out, logged, [tile], symmetric=symmetric)
    assert logged.calls == []


@pytest.mark.parametrize(
    "result",
    [torch.zeros(2, 2, dtype=torch.float64), torch.zeros(1, 2), torch.zeros(2, 2, 1), torch.zeros(())],
)
def test_fill_neither_casts_nor_broadcasts(result):
    with pytest.raises(InvalidValueError, match="Neither is cast"):
        local().fill(torch.zeros(2, 2), lambda _: result, tiles(2, height=2))


# ------------------------------------------------------------------ errors, interrupts, names


def test_an_error_names_its_item(any_engine):
    done = []
    with pytest.raises(TaskError, match=r"failed on 5: ZeroDivisionError: poisoned") as caught:
        done.extend(item for item, _ in any_engine.map(FailsOn(abs, 5), range(50)))
    assert caught.value.item == 5 and isinstance(caught.value.__cause__, ZeroDivisionError)
    assert isinstance(caught.value, FarfieldError)
    tile = Tile((0, 2), (2, 4))
    with pytest.raises(TaskError) as caught:
        any_engine.fill(torch.zeros(4, 4), FailsOn(lambda t: torch.zeros(t.shape), tile), tiles(4, height=2))
    assert caught.value.item == tile and str(tile) in str(caught.value)
    with pytest.raises(TaskError) as caught:
        any_engine.reduce(FailsOn(abs, 5), range(50), operator.add)
    assert caught.value.item == 5
    with pytest.raises(TaskError, match="StopIteration"):
        list(any_engine.map(lambda _: next(iter(())), [1]))


def test_task_error_survives_pickling():
    error = pickle.loads(pickle.dumps(TaskError(Tile((0, 1), (0, 1)), "ValueError: no")))
    assert error.item == Tile((0, 1), (0, 1)) and error.reason == "ValueError: no"
    assert len(str(TaskError("x" * 10_000, "no"))) < 300


def interrupt_on(number, item):
    if item == number:
        raise KeyboardInterrupt
    return item


def test_an_interrupt_passes_through_and_finished_work_stays(tmp_path, any_engine):
    checkpoint = Checkpoint(tmp_path, fingerprint("interrupt"))
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        list(any_engine.map(partial(interrupt_on, 7), range(50), checkpoint=checkpoint))
    assert threading.active_count() == threads
    assert all(checkpoint.load(i) == i for i in range(7))
    logged = Logged(abs)
    assert [r for _, r in any_engine.map(logged, range(50), checkpoint=checkpoint)] == list(range(50))
    assert set(logged.calls) <= set(range(7, 50)) and 7 in logged.calls


def signaled_on(number, item):
    if item == number:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.005)
    return item


@pytest.fixture
def interruptible():
    """Ctrl-C raises, as at a terminal: a job started in the background of a script has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_cleanly(tmp_path, any_engine):
    checkpoint, threads = Checkpoint(tmp_path, fingerprint("signal")), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        list(any_engine.map(partial(signaled_on, 7), range(200), checkpoint=checkpoint))
    assert threading.active_count() == threads
    finished = {i for i in range(200) if checkpoint.load(i) == i}
    assert set(range(5)) <= finished and len(finished) < 100
    assert not list(tmp_path.glob("*.part"))
    logged = Logged(abs)
    assert [r for _, r in any_engine.map(logged, range(200), checkpoint=checkpoint)] == list(range(200))
    assert set(logged.calls) == set(range(200)) - finished


def test_engines_by_name():
    assert engine() == engine("auto") == engine("local") == local() == LocalEngine(1)
    three = local(3)
    assert engine(three) is three
    assert engine("ray") == ray() == RayEngine()
    with pytest.raises(UnknownNameError, match="Did you mean 'local'"):
        engine("locale")
    for wrong in ({"workers": 0}, {"threads": 0}):
        with pytest.raises(InvalidValueError, match=r"at least one worker.*at least one thread"):
            local(**wrong)


def test_the_interface_is_abstract_and_engines_are_values(any_engine):
    with pytest.raises(TypeError, match="abstract"):
        Engine()
    assert pickle.loads(pickle.dumps(any_engine)) == any_engine


class BackwardsEngine(Engine):
    """Runs everything from the end: as far from `local` as the interface allows."""

    def run(self, task, items):
        todo = list(items)
        done = [pickle.loads(pickle.dumps(task))(item) for item in reversed(todo)]
        yield from reversed(done)


def test_another_engine_gives_the_same_bits(tmp_path):
    """And what it runs is picklable, checkpoint included."""
    task, cover = Product(features(13)), tiles(13, height=4, symmetric=True)
    checkpoint = Checkpoint(tmp_path, fingerprint(task))
    outs = [
        run.fill(torch.empty(13, 13, dtype=torch.float64), task, cover, symmetric=True, checkpoint=kept)
        for run, kept in [(local(), None), (BackwardsEngine(), None), (BackwardsEngine(), checkpoint)]
    ]
    assert identical(outs[0], outs[1]) and identical(outs[0], outs[2])
    sums = [run.reduce(seeded_normal, range(21), add) for run in (local(), BackwardsEngine())]
    streams = [run.stream(iter(range(21)), seeded_normal, add) for run in (local(), BackwardsEngine())]
    assert identical(sums[0], sums[1]) and identical(sums[0], streams[0]) and identical(sums[0], streams[1])
