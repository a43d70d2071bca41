"""Whole models and random graphs of operators: no evaluation leaves its interval, at any node, for any box."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from certify.intervals.oracle import DOUBLE, KINDS, box_around, point_in, violations
from farfield.certify.intervals import UnboundableError, propagate
from farfield.graph import Program, Sample, capture
from graph.models import MODELS
from growth.random_graphs import random_model

REFUSED = {
    "sparse_experts": "how many rows an expert sees is known only when it runs",
}
WAYS = ("corner", "inside", "one corner", "edge")


def examine(program: Program, examples: Sequence[Tensor], count: int = 12) -> list[str]:
    """Kinds of boxes for which no interval could be given; fails where one is left."""
    generator = torch.Generator().manual_seed(0)
    refused = []
    for kind in KINDS:
        centers = [x.to(DOUBLE) if x.is_floating_point() else x for x in examples]
        samples = [_sample(x) for x in centers]
        boxes = [box_around(s, c, kind, generator, None) for s, c in zip(samples, centers, strict=True)]
        named = {spec.name: b for spec, b in zip(program.inputs, boxes, strict=True) if b is not None}
        batches = (
            [
                point_in(s, c, b, WAYS[k % 4], generator)
                for s, c, b in zip(samples, centers, boxes, strict=True)
            ]
            for k in range(count)
        )
        try:
            found = violations(program, named, batches)
        except UnboundableError:
            refused.append(kind)
            continue
        assert not found, (kind, found)
    return refused


def _sample(x: Tensor) -> Sample:
    if x.is_floating_point():
        return Sample(tuple(x.shape))
    kind = "boolean" if x.dtype == torch.bool else "integer"
    return Sample(tuple(x.shape), kind, int(x.max()) + 1 if kind == "integer" else 0)


@pytest.mark.parametrize("name", sorted(set(MODELS) - set(REFUSED)))
def test_models(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    program = capture(model.eval(), inputs, dynamic_batch=False)
    flat = [x for x in torch.utils._pytree.tree_leaves(inputs) if isinstance(x, Tensor)]
    refused = examine(program, flat)
    assert "point" not in refused


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed: int) -> None:
    model, inputs = random_model(seed)
    program = capture(model.double().eval(), tuple(x.double() for x in inputs), dynamic_batch=False)
    assert "point" not in examine(program, inputs)


def test_a_wide_network_and_its_horizon() -> None:
    """A free input: whatever stands before the norm, what follows is bounded."""
    first = [nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64)]
    model = nn.Sequential(*first, nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 3))
    program = capture(model, torch.zeros(1, 8), dynamic_batch=False)
    assert examine(program, [torch.zeros(1, 8)]) == []
    assert propagate(program)["output"].bounded
