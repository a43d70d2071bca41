"""Reduction in blocks: the same tree, few arrivals, a bounded number under way, errors in the name of their item."""

import itertools
import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farfield.engine import Checkpoint, TaskError, _cluster, _ray, fingerprint, local
from farfield.engine._blocks import BlockRun, block_size
from farfield.engine._cluster import places
from farfield.engine._engine import Engine
from farfield.engine._packed import pack, unpack
from farfield.engine._ray import RayEngine
from farfield.engine._tree import PairwiseTree, aligned
from farfield.engine._worker import taken
from farfield.errors import InvalidValueError


def bracket(left, right):
    return f"({left}{right})"


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 7))
def test_aligned_blocks_are_subtrees(first, more, power):
    position = first
    for size in aligned(first, first + more, 2**power):
        assert size <= 2**power and size & (size - 1) == 0 and position % size == 0
        position += size
    assert position == first + more


@given(st.integers(1, 300), st.integers(0, 6), st.data())
def test_blocks_of_any_size_give_the_same_tree(n, power, data):
    expected = local().reduce(str, range(n), bracket)
    before = data.draw(st.integers(0, n))
    tree = PairwiseTree(bracket, None)
    for item in range(before):
        tree.push(str(item))
    position = before
    for size in aligned(before, n, 2**power):
        tree.push(local().reduce(str, range(position, position + size), bracket), size)
        position += size
    assert tree.count == n and tree.total() == expected


@pytest.mark.parametrize("n", [1, 63, 64, 127, 128, 129, 1000, 12_345, 10**6])
def test_few_results_arrive(n):
    sizes = list(aligned(0, n, block_size(n)))
    assert sum(sizes) == n and len(sizes) <= 128 + n.bit_length()
    assert n < 128 or len(sizes) >= 64


class FakeCluster:
    """Tasks that end one at a time, at random, when somebody waits."""

    def __init__(self, task, combine, seed, poisoned=()):
        self.task, self.combine, self.random = task, combine, random.Random(seed)
        self.tasks, self.values, self.poisoned = {}, {}, poisoned
        self.most, self.settled, self.arrived = 0, None, 0

    def _add(self, kind, *operands):
        key = len(self.tasks) + len(self.values) + 1
        self.tasks[key] = (kind, operands)
        return key

    def leaf(self, item):
        key = self._add("leaf", unpack(item, copy=True))
        self.most = max(self.most, sum(kind == "leaf" for kind, _ in self.tasks.values()))
        return ("error", key), ("outcome", key)

    def join(self, left, right):
        return "outcome", self._add("join", left[1], right[1])

    def _end_one(self):
        ready = [
            key
            for key, (kind, operands) in self.tasks.items()
            if kind == "leaf" or all(operand in self.values for operand in operands)
        ]
        key = self.random.choice(ready)
        kind, operands = self.tasks.pop(key)
        if kind == "join":
            self.values[key] = self.combine(*(self.values[operand] for operand in operands))
        else:
            item = operands[0]
            self.values[key] = TaskError(item, "poisoned") if item in self.poisoned else self.task(item)

    def fetch(self, reference, name):
        which, key = reference
        while key not in self.values:
            self._end_one()
        value = self.values[key]
        if which == "error":
            return pack((False, (value, None, "here"))) if isinstance(value, TaskError) else None
        self.arrived += 1
        return pack((True, value))

    def wait(self, references):
        while not (ended := [r for r in references if r[1] in self.values]):
            self._end_one()
        return ended

    def settle(self, references):
        self.settled = references

    def run(self, items, first, largest, limit, tell):
        asked = itertools.count()  # a cluster grows and shrinks
        now = lambda: max(1, limit - next(asked) // 40 % 3)  # noqa: E731
        run = BlockRun(self.leaf, self.join, self.fetch, self.wait, self.settle, now, ahead=4 * limit)
        named = iter([(f"item {item}", pack(item)) for item in items])
        return run.run(named, aligned(first, first + len(items), largest), tell, first=first)


@dataclass(frozen=True)
class FakeEngine(Engine):
    limit: int
    seed: int = 0
    largest: int | None = None
    poisoned: tuple = ()
    made: list = field(default_factory=list)

    def run(self, task, items):
        return map(task, items)

    def run_blocks(self, task, items, combine, *, first, tell):
        cluster = FakeCluster(task, combine, self.seed, self.poisoned)
        self.made.append(cluster)
        largest = block_size(first + len(items)) if self.largest is None else self.largest
        yield from cluster.run(items, first, largest, self.limit, tell)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 400), st.integers(1, 9), st.integers(0, 99), st.sampled_from([None, 1, 2, 8, 64, 512]))
def test_a_cluster_follows_the_fixed_tree(n, limit, seed, largest):
    engine = FakeEngine(limit, seed, largest)
    told = []
    got = engine.reduce(str, range(n), bracket, progress=lambda *at: told.append(at))
    assert got == local().reduce(str, range(n), bracket)
    assert told == [(i, n) for i in range(n + 1)]
    (cluster,) = engine.made
    assert cluster.most <= limit and cluster.settled == []
    if largest is None:
        assert cluster.arrived <= 128 + n.bit_length()


def test_an_error_bears_the_name_of_its_item_and_what_is_under_way_is_settled():
    engine = FakeEngine(4, largest=16, poisoned=(37,))
    with pytest.raises(TaskError, match="failed on 37: poisoned"):
        engine.reduce(str, range(100), bracket)
    (cluster,) = engine.made
    assert 1 <= len(cluster.settled) <= 4 * 4 + 3


@pytest.mark.parametrize("stop", [3, 17, 64, 99])
def test_blocks_are_kept_in_a_checkpoint(tmp_path, stop):
    checkpoint = Checkpoint(tmp_path, fingerprint("blocks"))
    with pytest.raises(TaskError):
        FakeEngine(4, largest=8, poisoned=(stop,)).reduce(str, range(100), bracket, checkpoint=checkpoint)
    computed = []

    def task(item):
        computed.append(item)
        return str(item)

    # By another engine too, with other blocks.
    got = FakeEngine(3, largest=32).reduce(task, range(100), bracket, checkpoint=checkpoint)
    assert got == local().reduce(str, range(100), bracket)
    assert sorted(computed) == list(range(min(computed), 100)) and stop - min(computed) < 8 + 4


@pytest.mark.parametrize(
    ("n", "stop", "limit"), [(500, 400, 200), (200, 199, 64), (300, 150, 1), (300, 297, 500)]
)
def test_all_whole_blocks_before_an_error_are_kept(tmp_path, n, stop, limit):
    checkpoint = Checkpoint(tmp_path, fingerprint("blocks"))
    with pytest.raises(TaskError, match=f"failed on {stop}"):
        FakeEngine(limit, largest=8, poisoned=(stop,)).reduce(str, range(n), bracket, checkpoint=checkpoint)
    assert PairwiseTree(bracket, checkpoint).count == stop - stop % 8
    assert local().reduce(str, range(n), bracket, checkpoint=checkpoint) == local().reduce(
        str, range(n), bracket
    )


class FailingJoin(FakeCluster):
    """One whose combination of a block fails."""

    def fetch(self, reference, name):
        if str(name).startswith("items 32 "):
            return pack((False, (ValueError("shapes"), None, "there")))
        return super().fetch(reference, name)


def test_no_block_comes_after_one_that_failed():
    blocks = FailingJoin(str, bracket, 0).run(range(24, 100), 24, 8, 50, lambda: None)
    assert next(blocks)[0] == 8
    with pytest.raises(TaskError, match="items 32 to 39"):
        next(blocks)  # and not the block behind it


def test_an_error_while_combining_names_the_block():
    with pytest.raises(TaskError, match="items 0 to 15, which are combined"):
        taken(pack((False, (ValueError("shapes"), None, "there"))), "items 0 to 15, which are combined")


class Machines:
    """A cluster, as far as it is asked what it has."""

    def __init__(self, *cores):
        self.cores = cores

    def nodes(self):
        gone = {"Alive": False, "Resources": {"CPU": 64.0}}
        return [gone, *({"Alive": True, "Resources": {"CPU": float(c)} if c else {}} for c in self.cores)]

    def cluster_resources(self):
        return {"CPU": float(sum(self.cores))}


def test_a_task_has_its_cores_on_one_machine():
    # 9 cores, but four tasks of two threads would wait for one another: 3 run at once.
    assert places(Machines(0, 3, 3, 3), 2) == 3
    assert places(Machines(0, 3, 3, 3), 1) == 9 and places(Machines(4, 4), 8) == 0
    assert RayEngine(threads=2)._places(Machines(0, 3, 3, 3)) == 3


class GrowingRay:
    """A cluster whose head computes nothing, and whose first worker comes after some looks."""

    def __init__(self, looks, cores):
        self.looks, self.cores = looks, cores

    def is_initialized(self):
        return True

    def nodes(self):
        self.looks -= 1
        head = {"Alive": True, "Resources": {}}
        return [head] if self.looks > 0 else [head, {"Alive": True, "Resources": {"CPU": float(self.cores)}}]

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address="127.0.0.1:1")


def test_the_first_worker_is_waited_for(monkeypatch):
    slept = []
    monkeypatch.setattr(_cluster.time, "sleep", slept.append)
    monkeypatch.setattr(_cluster, "_check_versions", lambda ray, address: None)  # there is none to ask
    monkeypatch.setattr(_cluster, "_ray", lambda: GrowingRay(4, 2))
    assert _cluster.places(_cluster.connect(None, workers=None, threads=2, store=None), 2) == 1
    assert slept == [1, 1, 1]
    monkeypatch.setattr(_cluster, "_ray", lambda: GrowingRay(0, 2))
    with pytest.raises(InvalidValueError, match="needs as many cores of one machine, and the largest"):
        _cluster.connect(None, workers=None, threads=3, store=None)
    assert len(slept) == 3, "a machine is there, and too small: nothing to wait for"


class SpillingRay:
    """Says that one task has ended, and right afterwards, its result being written to disk, that none has."""

    def __init__(self, answers):
        self.answers = list(answers)

    def wait(self, references, num_returns, timeout):
        ready = self.answers.pop(0)
        return ready, [r for r in references if r not in ready]


@pytest.mark.parametrize(
    ("answers", "ended"),
    [([[], ["b"], []], ["b"]), ([["b"], ["a", "b"]], ["b", "a"]), ([["a"], ["c"]], ["a", "c"])],
)
def test_what_has_ended_stays_ended(answers, ended):
    watch = SimpleNamespace(look=lambda: None)
    assert _ray._ended(SpillingRay(answers), watch, ["a", "b", "c"]) == ended
