"""Slow items among many: tasks end in any order, results come in theirs, and nobody waits; in virtual time."""

import heapq
import random
import threading
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_tasks import FailsOn
from farfield.engine import TaskError, _schedule, local
from farfield.engine._blocks import BlockRun
from farfield.engine._packed import pack
from farfield.engine._schedule import AHEAD, Schedule, bytes_of
from farfield.engine._tree import aligned

SLOW, SHARE = 150.0, 0.01
"""One item in a hundred takes 150 times as long as the others."""


class Workers:
    """A clock and workers: a task begins when one is free, in the order of submission."""

    def __init__(self, workers):
        self.now, self.free = 0.0, [0.0] * workers
        self.ends = {}
        self.most = 0

    def submit(self, seconds):
        begin = max(self.now, heapq.heappop(self.free))
        heapq.heappush(self.free, begin + seconds)
        handle = len(self.ends)
        self.ends[handle] = begin + seconds
        return handle

    def wait(self, handles):
        self.most = max(self.most, len(handles))
        self.now = max(self.now, min(self.ends[h] for h in handles))
        return [h for h in handles if self.ends[h] <= self.now]


def durations(count, seed):
    draw = random.Random(seed)
    return [SLOW if draw.random() < SHARE else 1.0 for _ in range(count)]


def efficiency(workers, items, *, ahead=None, ordered=True, size=lambda handle: 0):
    """Ideal time over simulated time; and checks that all results come, in order."""
    clock = Workers(workers)
    schedule = Schedule(
        submit=clock.submit, wait=clock.wait, fetch=lambda handle: handle, settle=lambda handles: None,
        under_way=lambda: 2 * workers, ahead=lambda: ahead or AHEAD * workers, size=size,
    )  # fmt: skip
    if ordered:
        assert list(schedule.in_order(items)) == list(range(len(items)))
    else:
        assert sorted(schedule.as_ended(items)) == [(i, i) for i in range(len(items))]
    assert clock.most <= 2 * workers
    return sum(items) / workers / clock.now


@pytest.mark.parametrize("workers", [2, 8, 32])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_stragglers_hold_nobody_up(workers, ordered, seed):
    assert efficiency(workers, durations(1000 * workers, seed), ordered=ordered) >= 0.90


@pytest.mark.parametrize(("workers", "at_most"), [(2, 0.80), (8, 0.30), (32, 0.10)])
def test_a_window_of_two_for_each_worker_would(workers, at_most):
    """So that the test before can fail: what it was."""
    assert efficiency(workers, durations(1000 * workers, 0), ahead=2 * workers) <= at_most


@pytest.mark.parametrize("workers", [2, 8, 32])
def test_stragglers_in_a_reduction_of_blocks(workers):
    clock, items = Workers(workers), durations(1024 * workers, 1)

    def leaf(item):
        handle = clock.submit(next(source))
        return handle, handle

    source = iter(items)
    run = BlockRun(
        leaf=leaf,
        join=lambda left, right: max(left, right, key=clock.ends.__getitem__),
        fetch=lambda handle, name: (
            clock.wait([handle]) and (None if isinstance(name, int) else pack((True, 0)))
        ),
        wait=clock.wait,
        settle=lambda handles: None,
        limit=lambda: 2 * workers,
        ahead=AHEAD * workers,
    )
    named = iter([(i, None) for i in range(len(items))])
    told = []
    blocks = list(run.run(named, aligned(0, len(items), 16), lambda: told.append(1)))
    assert sum(size for size, _ in blocks) == len(told) == len(items)
    assert sum(items) / workers / clock.now >= 0.90


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 5), st.integers(1, 12))
def test_no_more_is_begun_than_may_be_ahead(times, workers, ahead):
    clock, begun, given = Workers(workers), [0], 0

    def submit(seconds):
        begun[0] += 1
        assert begun[0] - given <= ahead
        return clock.submit(seconds)

    schedule = Schedule(
        submit=submit, wait=clock.wait, fetch=lambda handle: handle, settle=lambda handles: None,
        under_way=lambda: 2 * workers, ahead=lambda: ahead,
    )  # fmt: skip
    for expected, got in enumerate(schedule.in_order(times)):
        assert expected == got
        given += 1
    assert given == len(times)


def test_large_results_are_bounded_in_bytes():
    """The first item is slow: 4 workers may finish 512 small results meanwhile, and of 64 MB each not many."""
    items = [1000.0, *[1.0] * 400]

    def most_waiting(size):
        clock, held = Workers(4), [0, 0]
        schedule = Schedule(
            submit=clock.submit, wait=clock.wait, fetch=lambda h: held.__setitem__(0, held[0] - 1),
            settle=lambda handles: None, under_way=lambda: 8, ahead=lambda: 4 * AHEAD,
            size=lambda h: held.__setitem__(0, held[0] + 1) or held.__setitem__(1, max(held)) or size,
        )  # fmt: skip
        assert len(list(schedule.in_order(items))) == 401
        return held[1]

    assert most_waiting(1000) >= 400
    assert most_waiting(2**26) <= _schedule._WAITING // 2**26 + 8


def test_a_slow_item_does_not_hold_up_threads():
    """The first task ends only when a hundred others have, far more than two for each worker."""
    others = threading.Semaphore(0)

    def task(item):
        if item == 0:
            for _ in range(100):
                assert others.acquire(timeout=60)
        else:
            others.release()
        return item

    assert [r for _, r in local(2).map(task, iter(range(200)))] == list(range(200))
    others = threading.Semaphore(0)
    found = [item for item, _ in local(2).map(task, range(150), ordered=False)]
    assert sorted(found) == list(range(150)) and found[0] != 0


def test_nothing_is_begun_after_an_error():
    gate, begun = threading.Event(), []

    def task(item):
        begun.append(item)
        if item == 0:
            assert gate.wait(60)
        return FailsOn(abs, 1)(item)

    threading.Timer(0.5, gate.set).start()
    with pytest.raises(TaskError) as caught:
        list(local(2).map(task, iter(range(10_000))))
    assert caught.value.item == 1 and len(begun) <= 8


def test_map_takes_items_as_there_is_room():
    """A generator of any length: what was given out is not held."""
    live = weakref.WeakSet()

    class Item:
        def __init__(self):
            live.add(self)

    most = 0
    for ordered in (True, False):
        for _ in local(2).map(lambda item: None, (Item() for _ in range(5000)), ordered=ordered):
            most = max(most, len(live))
    assert most <= 2 * AHEAD + 8


def test_sizes_of_results():
    x = torch.zeros(100, dtype=torch.float64)
    assert bytes_of(x) == 800 and bytes_of([x, {"a": (x, x.numpy())}]) == 2400
    assert 0 < bytes_of("text") < 100
