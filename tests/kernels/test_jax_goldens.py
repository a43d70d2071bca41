"""Agreement with the archived JAX library to 1e-6, from stored values: nothing of JAX is needed here."""

import json
from pathlib import Path

import pytest
import torch

from farfield.kernels import Activate, Dense, Layer, LayerNorm, NetworkKernel, Residual

STORED = json.loads((Path(__file__).parent / "goldens" / "jax.json").read_text())
X = torch.tensor(STORED["inputs"], dtype=torch.float64)


def _layers(described: list[list]) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for name, *arguments in described:
        if name == "dense":
            layers.append(Dense(*arguments))
        elif name == "layer_norm":
            layers.append(LayerNorm())
        elif name == "residual":
            layers.append(Residual(_layers(*arguments)))
        elif name == "leaky_relu":
            layers.append(Activate(torch.nn.LeakyReLU(*arguments), 1.0))
        else:
            layers.append(Activate(name, 1.0))
    return tuple(layers)


@pytest.mark.parametrize("case", STORED["cases"], ids=lambda case: case["name"])
@pytest.mark.parametrize("compress", [True, False])
def test_same_as_the_archived_library(case, compress):
    k = NetworkKernel(_layers(case["layers"]), compress)
    for kind in ("nngp", "ntk"):
        theirs = torch.tensor(case[kind], dtype=torch.float64)
        ours = k.function(kind)(X)
        size = torch.sqrt(torch.outer(theirs.diagonal(), theirs.diagonal()))
        error = ((ours - theirs).abs() / size).max()
        assert error < 1e-6
        # Naive correlations make its diagonal the worst entry; a wrong kernel would be off everywhere.
        assert not (((1 + 1e-5) * ours - theirs).abs() / size).max() < 1e-6


def test_single_precision_agrees_too():
    for case in STORED["cases"]:
        k = NetworkKernel(_layers(case["layers"]))
        theirs = torch.tensor(case["ntk"], dtype=torch.float64)
        size = torch.sqrt(torch.outer(theirs.diagonal(), theirs.diagonal()))
        assert ((k.ntk(X.float()).double() - theirs).abs() / size).max() < 2e-6


def test_the_goldens_are_those_of_the_generator():
    from kernels.make_jax_goldens import inputs, networks

    assert STORED["inputs"] == inputs()
    assert {case["name"]: case["layers"] for case in STORED["cases"]} == networks()
