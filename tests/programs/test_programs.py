"""Random programs: no leak, no wrong verdict, no accepted forgery, no crash; and the oracles themselves.

The same seeds in every run, and others each night, which rotate by date. A failure prints its seed and a minimal
program; one seed is run again with ``FARFIELD_PROGRAMS_SEED=123 FARFIELD_PROGRAMS_COUNT=1 pytest tests/programs``.
Thousands: ``benchmarks/programs.py``.
"""

from __future__ import annotations

import datetime
import itertools
import os
import random
from dataclasses import replace

import pytest
import torch

import farfield as ff
from farfield.growth import Status
from programs import examine as examine_module
from programs.attack import Target, attack
from programs.examine import Fault, Settings, examine, examine_seed, plan_fails
from programs.generator import Plan, Source, build, random_plan, singles
from programs.known import KNOWN
from programs.shrink import shrink

FIRST = int(os.environ.get("FARFIELD_PROGRAMS_SEED", 739_939_000))
TODAY = 1000 * datetime.datetime.now(datetime.UTC).date().toordinal()
COUNT = int(os.environ.get("FARFIELD_PROGRAMS_COUNT", 40))
BLOCK = 10
CHEAP = Settings(seconds=0.05, samples=400, climb=12, forgeries=1)
GRAVE = ("leak", "wrong verdict", "accepted forgery", "refused certificate", "crash", "horizon")


def unknown_to_us(fault: Fault) -> bool:
    """Whether a fault is none of those that wait to be mended."""
    return fault.kind in GRAVE and not any(k.covers(fault.kind, fault.text) for k in KNOWN)


def examined(source: Source, seed: int, plan: Plan | None = None) -> None:
    """Fail with the faults of a program, and with a small one that has the first of them."""
    faults = [f for f in examine(source, seed, CHEAP).faults if unknown_to_us(f)]
    if not faults:
        return
    if plan is not None:
        source = shrink(plan, lambda p: plan_fails(p, faults[0].key, seed, CHEAP), tries=30).write()
    found = "\n".join(f"{f.kind}: {f.text}" for f in faults)
    pytest.fail(f"FARFIELD_PROGRAMS_SEED={seed}\n{found}\n\n{source.script()}", pytrace=False)


@pytest.mark.parametrize("block", range(-(-COUNT // BLOCK)))
def test_random_programs(block: int) -> None:
    examine_block(FIRST, block)


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(-(-COUNT // BLOCK)))
def test_random_programs_of_today(block: int) -> None:
    examine_block(TODAY, block)


def examine_block(first: int, block: int) -> None:
    """Ten programs of a run that begins with one seed."""
    for seed in range(first + BLOCK * block, first + min(COUNT, BLOCK * (block + 1))):
        plan = random_plan(seed)
        examined(plan.write(), seed, plan)


@pytest.mark.parametrize("part", range(4))
def test_operations_alone(part: int) -> None:
    """A tenth of them."""
    for _, source in itertools.islice(singles(), 10 * part, None, 40):
        examined(source, FIRST)


@pytest.mark.nightly
@pytest.mark.parametrize("tenth", range(1, 10))
@pytest.mark.parametrize("part", range(4))
def test_other_operations_alone(part: int, tenth: int) -> None:
    """The other nine tenths."""
    for _, source in itertools.islice(singles(), tenth + 10 * part, None, 40):
        examined(source, TODAY)


@pytest.mark.parametrize(
    "known",
    [pytest.param(k, marks=pytest.mark.xfail(strict=k.steady, reason=k.name)) for k in KNOWN],
    ids=lambda k: k.name,
)
def test_a_known_fault_is_mended(known) -> None:
    """Fails the day the fault is mended: then its entry in ``known.py`` goes."""
    source = known.source()
    faults = examine(source, 0, replace(CHEAP, seconds=0.3, forgeries=5, twins=6)).faults
    assert not [f for f in faults if known.covers(f.kind, f.text)]


# ------------------------------------------------------------------ the oracles


@pytest.mark.parametrize("seed", range(12))
def test_mpmath_and_float64_agree(seed: int) -> None:
    target = Target.of(random_plan(seed).write())
    x = torch.randn(sum(target.sizes), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    exact, double = target.exactly(x), target(x[None])[0]
    assert exact is not None
    for a, b in zip(exact, double.tolist(), strict=True):
        assert abs(float(a) - b) <= 1e-8 * (1.0 + abs(b))


def norm_and_head() -> Source:
    """Its range is known: ±√4·‖…‖ of a row of weights."""
    parts = ("self.p0 = draw(nn.Linear(3, 4), 1, 1.0)", "self.p1 = draw(nn.Linear(4, 1), 2, 1.0)")
    lines = ("h0 = F.layer_norm(self.p0(x), (4,))", "return self.p1(h0)")
    return Source(("x",), ((3,),), parts, lines, "bounded", False, False)


def kinds(source: Source, **settings: object) -> set[str]:
    return {f.kind for f in examine(source, 0, replace(Settings(seconds=0.5), **settings)).faults}


def test_a_narrowed_certificate_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine(norm_and_head(), 0, Settings(seconds=0.5)).faults == []
    honest = ff.certify

    def narrowed(*args, **kwargs):
        made = honest(*args, **kwargs)
        low, high = made.attained_lower, made.attained_upper  # whatever the bounds are, this is inside
        middle, half = (low + high) / 2, (high - low) / 2
        for name, value in (
            ("attained_lower", middle),
            ("attained_upper", middle),
            ("lower", middle - 0.97 * half),
            ("upper", middle + 0.97 * half),
        ):
            object.__setattr__(made, name, value)
        return made

    monkeypatch.setattr(examine_module, "ff", _Replaced(certify=narrowed))
    assert {"leak", "refused certificate"} <= kinds(norm_and_head())


def test_a_credulous_checker_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine_module, "check_program", lambda *_: True)
    assert kinds(norm_and_head(), twins=1) == {"accepted forgery"}


@pytest.mark.parametrize(
    ("said", "size"), [(Status.BOUNDED, "open"), (Status.BOUNDED, "grows"), (Status.UNBOUNDED, "bounded")]
)
def test_a_wrong_verdict_is_caught(monkeypatch: pytest.MonkeyPatch, said: Status, size: str) -> None:
    source = norm_and_head()
    if size != "bounded":
        source = replace(source, lines=("h0 = self.p0(x)", "return self.p1(torch.asinh(h0))"), size=size)

    def wrong(*args, **kwargs):
        made = ff.audit(*args, **kwargs)
        object.__setattr__(made, "verdict", said)
        return made

    monkeypatch.setattr(examine_module, "ff", _Replaced(audit=wrong))
    assert "wrong verdict" in kinds(source, certify=False)


class _Replaced:
    """farfield with some functions replaced."""

    def __init__(self, **functions) -> None:
        self._functions = functions

    def __getattr__(self, name: str):
        return self._functions.get(name) or getattr(ff, name)


def test_the_attack_reaches_the_known_range() -> None:
    target = Target.of(norm_and_head())
    low, high, *_ = attack(target, 0)
    w, b = target.model.p1.weight[0], float(target.model.p1.bias)
    reach = 2.0 * float((w - w.mean()).norm())
    assert float(high - low) >= 0.98 * 2 * reach
    assert b - reach <= float(low) and float(high) <= b + reach


def test_shrinking_keeps_what_fails_and_little_else() -> None:
    def fails(plan: Plan) -> bool:
        return "cumsum" in plan.write().body()

    plan = next(p for p in map(random_plan, range(3000)) if fails(p) and len(p.write().lines) > 8)
    small = shrink(plan, fails, tries=300)
    assert fails(small)
    assert len(small.write().lines) <= 4
    build(small.write().script())(*small.write().inputs)


def test_the_same_seed_gives_the_same_program() -> None:
    for seed in random.Random(0).sample(range(10**6), 20):
        assert random_plan(seed).write().script() == random_plan(seed).write().script()


def test_a_program_that_was_trained_is_the_same_every_time() -> None:
    source = random_plan(75).write()  # with dropout, which draws while it trains
    assert "dropout" in source.body()
    first, second = (source.build().state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_certificate_without_a_number_is_no_forgery_of_another_model() -> None:
    outcome = examine_seed(
        5007, CHEAP
    )  # intervals give [−∞, ∞], which is true of the unbounded twins as well
    assert outcome.verdict == "BOUNDED" and not outcome.faults, outcome
