"""Every registered graph operator is enrolled: it has a growth rule that evaluations never contradict, and a jet rule
that agrees with evaluation far away. Deliberately wrong rules must be caught by the same oracles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from captured import program_of
from farfield.graph import Node, capture, operator, operator_names
from farfield.growth import register_growth_rule, register_jet_rule
from farfield.growth._analysis import analyze_growth
from farfield.growth._extent import Extent, interval, join
from farfield.growth._registry import GROWTH_RULES, GrowthRule, Site
from farfield.growth._step import JET_RULES, JetRule
from farfield.growth.jets import rule_of
from growth.oracles import RADII, horizon_violations, interval_violations, rate_violations

WITHOUT_JET_RULE = {
    "adaptive_max_pool",
    "angle",
    "bernoulli",
    "cummax",
    "cummin",
    "cumprod",
    "embedding_bag",
    "grid_sample",
    "isinf",
    "isnan",
    "logcumsumexp",
    "masked_select",
    "nonzero",
    "one_hot",
    "polar",
    # made from sizes alone, so nothing moves:
    "arange",
    "empty",
    "eye",
    "full",
    "linspace",
    "randint",
    "random",
}
"""Operators whose far limit is left unknown (degenerate), or that never move."""
EXAMPLES = [(name, index) for name in operator_names() for index in range(len(operator(name).examples))]
RANDOM = {"random", "randint", "bernoulli", "empty", "dropout"}


@contextmanager
def growth_rule_of(op: str, rule: GrowthRule) -> Iterator[None]:
    """Another growth rule for the length of a test."""
    before = GROWTH_RULES.find(Node("", op))
    register_growth_rule(op, rule)
    try:
        yield
    finally:
        assert before is not None
        register_growth_rule(op, before)


@contextmanager
def jet_rule_of(op: str, rule: JetRule) -> Iterator[None]:
    """Another jet rule for the length of a test."""
    before = JET_RULES.find(Node("", op))
    register_jet_rule(op, rule)
    try:
        yield
    finally:
        assert before is not None
        register_jet_rule(op, before)


def _nodes(name: str) -> list[Node]:
    return [node for i in range(len(operator(name).examples)) for node in program_of(name, i).find(name)]


@pytest.mark.parametrize("name", operator_names())
def test_every_operator_has_a_growth_rule(name: str) -> None:
    """A rule of its own, or what it is composed of, or what its facts say."""
    for index in range(len(operator(name).examples)):
        analysis = analyze_growth(program_of(name, index))
        found = [
            doubt.text
            for node in program_of(name, index).find(name)
            for doubt in analysis.extent(node.name).doubts
        ]
        assert not any("no growth rule" in text for text in found)


@pytest.mark.parametrize("name", sorted(set(operator_names()) - WITHOUT_JET_RULE))
def test_every_operator_has_a_jet_rule(name: str) -> None:
    assert all(rule_of(node) is not None for node in _nodes(name))


def _batches(inputs: tuple[Tensor, ...], generator: torch.Generator) -> Iterator[list[Tensor]]:
    for radius in RADII:
        for _ in range(3):
            yield [
                radius * torch.randn(x.shape, generator=generator, dtype=torch.float64)
                if x.is_floating_point()
                else x
                for x in inputs
            ]
    # Coordinates that vanish, agree or oppose each other are where rules slip.
    for x in (torch.zeros, torch.ones):
        yield [1e3 * x(t.shape, dtype=torch.float64) if t.is_floating_point() else t for t in inputs]


@pytest.mark.parametrize(("name", "index"), EXAMPLES)
def test_growth_rule_is_never_contradicted(name: str, index: int) -> None:
    example = operator(name).examples[index]
    inputs = example.inputs()
    if any(x.is_complex() for x in inputs) or name in RANDOM:
        pytest.skip("inputs of a model are real, and its draws are held fixed")
    program = program_of(name, index)
    analysis = analyze_growth(program)
    generator = torch.Generator().manual_seed(1)
    assert not interval_violations(program, analysis, _batches(inputs, generator))
    directions = [
        torch.randn(x.shape, generator=generator, dtype=torch.float64) if x.is_floating_point() else x
        for x in inputs
    ]
    assert not rate_violations(program, analysis, directions)


@pytest.mark.parametrize(("name", "index"), EXAMPLES)
def test_jet_rule_agrees_with_far_evaluation(name: str, index: int) -> None:
    example = operator(name).examples[index]
    inputs = example.inputs()
    if any(x.is_complex() for x in inputs) or name in RANDOM | WITHOUT_JET_RULE:
        pytest.skip("not followed to infinity")
    if not any(x.is_floating_point() for x in inputs):
        pytest.skip("nothing can move")
    program = program_of(name, index)
    generator = torch.Generator().manual_seed(2)
    directions = [
        torch.randn(4, *x.shape, generator=generator, dtype=torch.float64) if x.is_floating_point() else None
        for x in inputs
    ]

    def evaluate(radius: float) -> Tensor:
        rows = []
        for k in range(4):
            batch = [x if u is None else radius * u[k] for x, u in zip(inputs, directions, strict=True)]
            rows.append(program.evaluate(*batch)[program.outputs[0]])
        return torch.stack(rows)

    if evaluate(1.0).is_complex():
        pytest.skip("a complex output has no horizon")
    found = horizon_violations(program, directions, inputs, evaluate)
    assert not found, found


class _Net(nn.Module):
    def __init__(self, middle: Callable[[Tensor], Tensor] | nn.Module, width: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 2)
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


def _model(middle: Callable[[Tensor], Tensor] | nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    model = _Net(middle).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def _caught(middle: Callable[[Tensor], Tensor] | nn.Module) -> bool:
    """Some evaluation contradicts the claims about this network."""
    model = _model(middle)
    x = torch.zeros(2, 4, dtype=torch.float64)
    program = capture(model, (x,))
    analysis = analyze_growth(program)
    generator = torch.Generator().manual_seed(3)
    rows = torch.cat(
        [
            torch.randn(64, 4, generator=generator, dtype=torch.float64),
            torch.eye(4, dtype=torch.float64),
            -torch.eye(4, dtype=torch.float64),
        ]
    )
    batches = [[radius * rows] for radius in RADII]
    return bool(interval_violations(program, analysis, batches) or rate_violations(program, analysis, [rows]))


def _bounded(site: Site) -> Extent:
    return interval(-3.0, 3.0, *site.everything())


def _two_sided_minimum(site: Site) -> Extent:
    """Wrong: min(x, 1) counted as bounded below as well."""
    a, b = site.operand(0, "input"), site.operand(1, "other")
    smallest = min((a, b), key=lambda e: e.rate)
    return interval(smallest.lo, smallest.hi, a, b)


def _norm_of_one_feature(site: Site) -> Extent:
    """Wrong: the bound of a norm over one feature, whatever its width."""
    return interval(0.0, 0.0, site.extent(0))


def _small_product(site: Site) -> Extent:
    """Wrong: a product no faster than its faster factor."""
    a, b = site.operand(0, "input"), site.operand(1, "other")
    return join(a, b)


WRONG: list[tuple[str, GrowthRule, Callable[[Tensor], Tensor] | nn.Module]] = [
    ("batch_norm", _bounded, nn.BatchNorm1d(6)),
    ("layer_norm", _norm_of_one_feature, nn.LayerNorm(6)),
    ("minimum", _two_sided_minimum, lambda h: torch.minimum(h, torch.tanh(h))),
    ("mul", _small_product, lambda h: h * torch.flip(h, (-1,))),
    ("relu", _bounded, torch.relu),
    ("softplus", lambda site: interval(0.0, 1.0, site.extent(0)), nn.functional.softplus),
    ("exp", lambda site: interval(0.0, 1.0, site.extent(0)), lambda h: torch.exp(torch.tanh(h))),
    ("amax", lambda site: interval(-1.0, 1.0, site.extent(0)), lambda h: h - h.amax(-1, keepdim=True)),
]


@pytest.mark.parametrize(("op", "rule", "middle"), WRONG, ids=[op for op, _, _ in WRONG])
def test_a_wrong_growth_rule_is_caught(
    op: str, rule: GrowthRule, middle: Callable[[Tensor], Tensor] | nn.Module
) -> None:
    assert not _caught(middle)
    with growth_rule_of(op, rule):
        assert _caught(middle)


def _horizon_caught(middle: Callable[[Tensor], Tensor] | nn.Module) -> bool:
    model = _model(middle)
    program = capture(model, (torch.zeros(2, 4, dtype=torch.float64),))
    u = torch.randn(32, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)

    @torch.no_grad()
    def evaluate(radius: float) -> Tensor:
        result: Tensor = model(radius * u)
        return result

    return bool(horizon_violations(program, [u], [None], evaluate))


WRONG_JETS: list[tuple[str, JetRule, Callable[[Tensor], Tensor] | nn.Module]] = [
    ("relu", lambda step: step.jet(0), torch.relu),
    ("layer_norm", lambda step: step.jet(0), nn.LayerNorm(6)),
    ("tanh", lambda step: step.jet(0).raised(-torch.inf), torch.tanh),
    ("softmax", lambda step: step.jet(0), lambda h: torch.softmax(h, -1)),
]


@pytest.mark.parametrize(("op", "rule", "middle"), WRONG_JETS, ids=[op for op, _, _ in WRONG_JETS])
def test_a_wrong_jet_rule_is_caught(
    op: str, rule: JetRule, middle: Callable[[Tensor], Tensor] | nn.Module
) -> None:
    assert not _horizon_caught(middle)
    with jet_rule_of(op, rule):
        assert _horizon_caught(middle)
