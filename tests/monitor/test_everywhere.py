"""What farfield puts into a model runs wherever the model does: on a device, compiled, in half precision."""

import functools

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

import farfield as ff
from farfield import nn as ffnn
from farfield.graph import copied
from farfield.monitor import guard

ROWS = torch.randn(200, 6, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, 9, 0.2, 1, 4, 1])
LOW, HIGH = -torch.ones(6), torch.ones(6)


def network(activation=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), activation(), nn.Linear(16, 6)).eval()


def program():
    return torch.export.export(network(), (ROWS[:5],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


def other_answer():
    return guard(network(), ROWS, on_outside="fallback", fallback=network(nn.Tanh))


def of_half_precision():
    return guard(network().bfloat16(), ROWS.bfloat16(), on_outside="cap").float()


BOUNDED = {
    "clamp": lambda: ffnn.FeatureClamp(LOW, HIGH),
    "plain clamp": lambda: ffnn.FeatureClamp(LOW, HIGH, end=float("inf")),
    "soft clamp": lambda: ffnn.FeatureClamp(LOW, HIGH, soft=True),
    "cap": lambda: ffnn.NormCap(2.0),
    "soft cap": lambda: ffnn.NormCap(2.0, center=LOW / 2, weight=HIGH / 3, soft=True),
    "plain head": lambda: ffnn.RangeHead(LOW, HIGH, knee=0.0),
    "guard, cap": lambda: guard(network(), ROWS, on_outside="cap"),
    "guard, fallback": lambda: guard(network(), ROWS, on_outside="fallback"),
    "guard, another answer": other_answer,
    "guard of half precision": of_half_precision,
    "repaired": lambda: ff.repair(network(), ROWS, keep=0.9).model,
    "soft repair": lambda: ff.repair(network(), ROWS, method="soft", keep=0.9).model,
    "repaired program": lambda: ff.repair(program(), ROWS, keep=0.9).model,
    "rollout": lambda: ff.repair(network(), ROWS, rollout=True, keep=0.9).model,
}
"""Finite whatever comes in, NaN and infinity included."""
BUILDERS = {
    **BOUNDED,
    "head": lambda: ffnn.RangeHead(LOW, HIGH),
    "head of numbers": lambda: ffnn.RangeHead(-1.0, 1.0),
    "guard, flag": lambda: guard(network(), ROWS),
    "center": lambda: ffnn.Center(),
    "project": lambda: ffnn.Project(1e-5),
    "layer norm": lambda: ffnn.LayerNorm(),
    "mean-field center": lambda: ffnn.MeanFieldCenter("relu"),
    "mean-field projection": lambda: ffnn.MeanFieldProject("relu"),
    "norm of groups": lambda: ffnn.GroupedLayerNorm(6, 2),
    "norm of channels": lambda: ffnn.GroupedChannelNorm(6, 2),
    "elementwise": lambda: ffnn.Elementwise("gelu"),
    "network": lambda: ffnn.MLP(6, 2, width=16, depth=2, norm="layer", parametrization="ntk"),
}


@functools.cache
def _built(name):
    return BUILDERS[name]()


def module(name):
    """A copy of the module of this name."""
    return copied(_built(name))


def outputs(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def test_every_module_is_here():
    """A new module of these rooms joins the table above."""
    seen = {type(part) for name in BUILDERS for part in module(name).modules()}
    rooms = ("farfield.nn.", "farfield.monitor.", "farfield.repair.")
    queue, known = [nn.Module], set()
    while queue:
        for kind in queue.pop().__subclasses__():
            if kind not in known:
                known.add(kind)
                queue.append(kind)
    # A repair makes such a class of a model's own.
    known = {kind for kind in known if "plain" not in vars(kind)}
    own = {kind for kind in known if f"{kind.__module__}.".startswith(rooms)}
    missing = {kind.__name__ for kind in own - seen if not kind.__name__.startswith("_")}
    assert missing <= {"Chain", "Named", "ScoredRange"}  # what others derive from, and a wrapper of one call


@torch.no_grad()
@pytest.mark.parametrize("name", BUILDERS)
def test_on_a_device_nothing_stays_behind_and_nothing_waits(name):
    """Tensors without numbers that say they are on a GPU: asking for one of them, or mixing devices, raises."""
    made = module(name)
    with FakeTensorMode():
        state = {
            key: torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
            for key, tensor in (*made.named_parameters(), *made.named_buffers())
        }
        found = outputs(functional_call(made, state, (torch.empty(8, 6, device="cuda"),), strict=True))
    assert found and all(tensor.device.type == "cuda" for tensor in found)


@torch.no_grad()
@pytest.mark.parametrize("name", BUILDERS)
def test_compiled_in_one_piece(name):
    made, x = module(name), torch.cat([ROWS[:5], 1e6 * ROWS[:5]])
    compiled = torch.compile(copied(made), backend="eager", fullgraph=True)
    for got, want in zip(outputs(compiled(x)), outputs(made(x)), strict=True):
        torch.testing.assert_close(got, want)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BUILDERS)
def test_in_half_precision(name, dtype):
    made, x = module(name).to(dtype), 0.4 * ROWS[:50]  # nowhere near a limit, where two roundings disagree
    first = outputs(made(x.to(dtype)))[0]
    wanted = outputs(module(name)(x))[0]
    assert first.dtype == dtype
    torch.testing.assert_close(first.float(), wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", BOUNDED)
def test_whatever_comes_in_of_any_type_numbers_come_out(name, dtype):
    largest = torch.finfo(dtype).max
    hostile = torch.tensor([largest, -largest, float("inf"), -float("inf"), float("nan"), 0.0, 1.0])
    picks = torch.randint(7, (300, 6), generator=torch.Generator().manual_seed(3))
    assert all(
        bool(t.isfinite().all()) for t in outputs(module(name).to(dtype)(hostile[picks].to(dtype)))[:1]
    )


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BUILDERS)
def test_under_autocast(name, dtype):
    made, x = module(name), 0.4 * ROWS[:50]
    with torch.autocast("cpu", dtype=dtype):
        first = outputs(made(x))[0]
    wanted = outputs(made(x))[0]
    torch.testing.assert_close(first.float(), wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))
