"""No wrong verdict, no broken claim, over random graphs of operators; how many stay UNKNOWN."""

from __future__ import annotations

from collections import Counter

import pytest

from farfield.graph import Node
from farfield.growth import Status, register_growth_rule
from farfield.growth._extent import Extent, interval
from farfield.growth._registry import GROWTH_RULES, Site
from growth.random_graphs import Outcome, examine, random_model

FEW, MANY = range(30), range(10_000, 12_000)


def tally(outcomes: list[Outcome]) -> Counter[Status]:
    return Counter(outcome.status for outcome in outcomes)


def check(outcomes: list[Outcome], unknown: float) -> None:
    wrong = {
        o.seed: (o.status.name, o.wrong, random_model(o.seed)[0].describe()) for o in outcomes if o.wrong
    }
    assert not wrong, wrong
    counts = tally(outcomes)
    print(
        {status.name: count for status, count in counts.items()},
        Counter(o.cause for o in outcomes if o.cause),
    )
    assert counts[Status.BOUNDED] > 0
    assert counts[Status.UNBOUNDED] > 0
    assert counts[Status.UNKNOWN] <= unknown * len(outcomes), counts


def test_few_random_graphs() -> None:
    check([examine(seed) for seed in FEW], unknown=0.15)


@pytest.mark.nightly
@pytest.mark.timeout(14_400)
def test_many_random_graphs() -> None:
    check([examine(seed) for seed in MANY], unknown=0.10)


def _bounding(site: Site) -> Extent:
    return interval(-9.0, 9.0, *site.everything())


@pytest.mark.parametrize(("op", "block"), [("batch_norm", "batch"), ("minimum", "minimum"), ("relu", "relu")])
def test_a_wrong_rule_is_caught(op: str, block: str) -> None:
    """An operator wrongly counted as bounding gives claims, or verdicts, that evaluation contradicts."""
    seeds = [s for s in range(200) if any(step.name == block for step in random_model(s)[0].steps)][:4]
    assert not any(examine(seed).wrong for seed in seeds)
    before = GROWTH_RULES.find(Node("", op))
    assert before is not None
    register_growth_rule(op, _bounding)
    try:
        assert any(examine(seed).wrong for seed in seeds)
    finally:
        register_growth_rule(op, before)
