"""Every registered graph operator is enrolled: evaluations at points of boxes of every size, finite, half-infinite
and free, never leave the intervals claimed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from captured import Plain, program_of
from certify.intervals.oracle import KINDS, box_around, points, violations
from farfield.certify.intervals import Interval, UnboundableError, interval_rule_names, propagate
from farfield.errors import InvalidValueError
from farfield.graph import capture, operator, operator_names
from farfield.graph.operators import NOTHING
from farfield.growth._registry import GROWTH_RULES

EXAMPLES = [(name, index) for name in operator_names() for index in range(len(operator(name).examples))]
POINTS, MANY_POINTS = 32, 200
"""Per box, of which every example has seven."""
WITHOUT_STATIC_SHAPE = {
    "masked_select": "how many entries it returns is known only when it runs",
    "nonzero": "how many rows it returns is known only when it runs",
}
FROM_GROWTH = {
    "angle",
    "complex",
    "conj",
    "embedding_bag",
    "empty",
    "fft_fft",
    "fft_ifft",
    "fft_irfft",
    "fft_rfft",
    "grid_sample",
    "gru",
    "imag",
    "lstm",
    "polar",
    "real",
    "rnn_relu",
    "rnn_tanh",
    "view_as_complex",
    "view_as_real",
}
"""Bounded by one interval per tensor, from the growth rule."""
DOMAINS = {
    "acosh": (1.01, 50.0),
    "log1p": (-0.99, 1e6),
    "nan_to_num": (0.01, 1e6),
    "tan": (-1.5, 1.5),
}
"""Where an example's inputs have to stay for its value to be defined, beyond what its samples say."""
OF_KIND = {"positive": (0.05, 1e6), "unit": (0.01, 0.99)}


def test_every_operator_has_a_rule_or_a_growth_rule() -> None:
    moving = {
        name for name in operator_names() if not callable(facts := operator(name).facts) and facts.moves
    }
    moving |= {"cat", "stack", "slice_scatter", "select_scatter"}  # whose facts depend on their operands
    missing = set(operator_names()) - set(interval_rule_names()) - (moving - set(WITHOUT_STATIC_SHAPE))
    assert missing == FROM_GROWTH | set(WITHOUT_STATIC_SHAPE)
    described = {name for name in FROM_GROWTH if operator(name).facts != NOTHING}
    assert set(GROWTH_RULES.names()) | described >= FROM_GROWTH


@pytest.mark.parametrize("name", sorted(WITHOUT_STATIC_SHAPE))
def test_a_shape_that_only_running_tells_is_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match="every size as a number"):
        propagate(program_of(name, 0))


@pytest.mark.parametrize(("name", "index"), [e for e in EXAMPLES if e[0] not in WITHOUT_STATIC_SHAPE])
def test_no_evaluation_leaves_its_interval(name: str, index: int) -> None:
    _check(name, index, POINTS)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "index"), [e for e in EXAMPLES if e[0] not in WITHOUT_STATIC_SHAPE])
def test_no_evaluation_of_many_leaves_its_interval(name: str, index: int) -> None:
    _check(name, index, MANY_POINTS)


def _check(name: str, index: int, count: int) -> None:
    example, program = operator(name).examples[index], program_of(name, index)
    generator = torch.Generator().manual_seed(count + index)
    held = 0
    for number, kind in enumerate(KINDS):
        centers = example.inputs(seed=number)
        domains = [DOMAINS.get(name, OF_KIND.get(sample.kind)) for sample in example.samples]
        if name in DOMAINS:
            centers = tuple(c.clamp(*DOMAINS[name]) for c in centers)
        boxes = [
            box_around(s, c, kind, generator, d)
            for s, c, d in zip(example.samples, centers, domains, strict=True)
        ]
        named = {spec.name: b for spec, b in zip(program.inputs, boxes, strict=True) if b is not None}
        try:
            found = violations(program, named, points(example, centers, boxes, generator, count))
        except UnboundableError:
            # Wide boxes may hold points where the operator is undefined; a single point does not.
            assert kind not in ("point", "tiny"), kind
            continue
        assert not found, (kind, found)
        held += 1
    assert held >= 4


@pytest.mark.parametrize("join", [torch.cat, lambda parts, dim: torch.stack(parts, dim)])
def test_a_real_number_among_complex_ones_has_an_imaginary_part_of_zero(join: Any) -> None:
    x = torch.full((1, 2), 0.5, dtype=torch.float64)
    function = Plain(lambda x: torch.view_as_real(join([torch.complex(x + 3.0, x + 3.0), x + 5.0], -1)))
    program = capture(function, x, dynamic_batch=False)
    box = Interval(torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64))
    claim = propagate(program, {program.inputs[0].name: box})[program.outputs[0]]
    assert isinstance(claim, Interval)
    value = function(x)
    assert bool((claim.lo <= value).all() and (value <= claim.hi).all())
