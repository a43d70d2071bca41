"""Every registered activation keeps its word; and the suite that says so can tell when one does not."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from activation_contract import CHECKS, enrolled
from farfield.gaussian import Activation, ClosedForm, Growth, Tail, activation, activation_names
from mp_activations import TWINS

CASES = enrolled()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
@pytest.mark.parametrize("sigma", CASES.values(), ids=CASES.keys())
def test_activation_keeps_the_contract(sigma: Activation, check: Callable[[Activation], None]) -> None:
    check(sigma)


def test_every_registered_activation_is_written_down_twice() -> None:
    assert set(activation_names()) <= set(TWINS)


# --- deliberately wrong ------------------------------------------------------------------------------------------


def _but(name: str, **changes: object) -> Activation:
    return dataclasses.replace(activation(name), **changes)  # type: ignore[arg-type]


def _grows(name: str, **changes: object) -> Activation:
    growth = activation(name).growth
    assert growth is not None
    return _but(name, growth=dataclasses.replace(growth, **changes))  # type: ignore[arg-type]


def _formula(name: str, **changes: object) -> Activation:
    closed = activation(name).closed_form
    assert closed is not None
    return _but(name, closed_form=dataclasses.replace(closed, **changes))  # type: ignore[arg-type]


def _shifted(x: Tensor) -> Tensor:
    return torch.tanh(x) + 1e-9 * torch.sin(x)


def _product_of_means(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    return 0.0 * rho + torch.sqrt(q1 * q2) / (2 * math.pi)


WRONG: dict[str, tuple[str, Activation]] = {
    "formula: tanh off by 1e-9": ("formula", _but("tanh", function=_shifted)),
    "formula: the other gelu": ("formula", _but("gelu", function=activation("gelu_tanh").function)),
    "formula: torch's tanhshrink cancels": (
        "formula",
        _but("tanhshrink", function=torch.nn.functional.tanhshrink),
    ),
    "derivative: tanh too steep": (
        "derivative",
        _but("tanh", derivative=lambda x: 1 - 0.9999 * torch.tanh(x) ** 2),
    ),
    "derivative: silu without its second term": ("derivative", _but("silu", derivative=torch.sigmoid)),
    "derivative: step differentiable": ("derivative", _but("step", derivative=torch.ones_like)),
    "dtype: always double": ("dtype", _but("tanh", function=lambda x: torch.tanh(x.double()))),
    "kinks: relu has none": ("kinks_complete", _but("relu", kinks=())),
    "kinks: elu has none": ("kinks_complete", _but("elu", kinks=())),
    "kinks: softsign has none": ("kinks_complete", _but("softsign", kinks=())),
    "kinks: relu6 has only one": ("kinks_complete", _but("relu6", kinks=(0.0,))),
    "kinks: cubic relu has none": (
        "kinks_complete",
        dataclasses.replace(activation("power_relu", n=3), kinks=()),
    ),
    "kinks: tanh has one": ("kinks_real", _but("tanh", kinks=(0.5,))),
    "jumps: step has none": ("jumps", _but("step", jumps=())),
    "jumps: step is lower": ("jumps", _but("step", jumps=((0.0, 0.999),))),
    "jumps: relu has one": ("jumps", _but("relu", jumps=((0.0, 0.5),))),
    "tails: slope": ("tails", _grows("leaky_relu", left=Tail("linear", 0.02, 0.0))),
    "tails: slope left out": ("tails", _grows("leaky_relu", left=Tail("bounded", 0.0, 0.0))),
    "tails: offset": ("tails", _grows("tanhshrink", right=Tail("linear", 1.0, 1.0))),
    "tails: limit of the other side": ("tails", _grows("sigmoid", left=Tail("bounded", 0.0, 1.0))),
    "tails: sine converges": ("tails", _grows("sin", right=Tail("bounded", 0.0, 0.0))),
    "tails: tanh does not": ("tails", _grows("tanh", right=Tail("bounded"))),
    "tails: superlinear relu": ("tails", _grows("relu", right=Tail("superlinear", math.inf))),
    "tails: he2 falls on the left": ("tails", _grows("he2", left=Tail("superlinear", math.inf))),
    "tails: exp is linear": ("tails", _grows("exp", right=Tail("linear", 1.0, 0.0))),
    "tails: sublinear tanh": ("tails", _grows("tanh", right=Tail("sublinear"))),
    "tails: unknown": ("tails", _but("relu", growth=None)),
    "recession gap: never reached": ("recession_gap", _grows("gelu", recession_gap=0.17)),
    "recession gap: exceeded": ("recession_gap", _grows("gelu", recession_gap=0.1699712)),
    "recession gap: exceeded by 1e-12": (
        "recession_gap",
        _grows("silu", recession_gap=0.2784645427610738 - 1e-12),
    ),
    "recession gap: infinite": ("recession_gap", _grows("gelu", recession_gap=math.inf)),
    "bounded: range of relu": ("bounded", _but("relu", range=(0.0, 10.0))),
    "range: gelu goes lower": ("range", _but("gelu", range=(-0.1699, math.inf))),
    "range: gelu does not go so low": ("range", _but("gelu", range=(-0.18, math.inf))),
    "range: tanh does not reach 1.1": ("range", _but("tanh", range=(-1.0, 1.1))),
    "range: sigmoid passes 0.9": ("range", _but("sigmoid", range=(0.0, 0.9))),
    "range: softplus is positive": ("range", _but("softplus", range=(-math.inf, math.inf))),
    "Lipschitz: gelu is steeper": ("lipschitz", _but("gelu", lipschitz=1.128)),
    "Lipschitz: gelu is less steep": ("lipschitz", _but("gelu", lipschitz=1.2)),
    "Lipschitz: sigmoid is at most 1/4": ("lipschitz", _but("sigmoid", lipschitz=1.0)),
    "Lipschitz: tanh has a constant": ("lipschitz", _but("tanh", lipschitz=math.inf)),
    "Lipschitz: step has none": ("lipschitz", _but("step", lipschitz=1.0)),
    "homogeneity: relu of degree 2": ("homogeneity", _but("relu", homogeneity=2)),
    "homogeneity: tanh of degree 1": ("homogeneity", _but("tanh", homogeneity=1)),
    "homogeneity: relu of none": ("homogeneity", _but("relu", homogeneity=None)),
    "moments: tanh off by 1e-9": ("moments", _but("tanh", function=_shifted)),
    "hermite: tanh off by 1e-9": ("hermite", _but("tanh", function=_shifted)),
    "isometry strength: of another function": ("isometry_strength", _but("tanh", function=torch.sin)),
    "closed form: of another function": (
        "closed_form",
        _but("relu", closed_form=activation("gelu").closed_form),
    ),
    "closed form: slope with a sign lost": (
        "closed_form",
        _formula("abs", slope=ClosedForm(dual=activation("leaky_relu").closed_form.dual).dual),  # type: ignore[union-attr]
    ),
    "closed form: slope off by 1e-11": (
        "closed_form",
        _formula("sin", slope=lambda r, q1, q2: activation("sin").closed_form.slope(r, q1, q2) * (1 + 1e-11)),  # type: ignore[union-attr, misc]
    ),
    "closed form: mean not taken off": (
        "closed_form",
        _formula("exp", reduced=activation("exp").closed_form.dual),  # type: ignore[union-attr]
    ),
    "closed form: dual without correlation": ("closed_form", _formula("relu", dual=_product_of_means)),
}


@pytest.mark.parametrize("label", WRONG)
def test_wrong_activation_is_caught(label: str) -> None:
    check, sigma = WRONG[label]
    with pytest.raises(AssertionError):
        CHECKS[check](sigma)


def test_every_check_has_caught_something() -> None:
    assert {check for check, _ in WRONG.values()} == set(CHECKS)


def test_a_wrong_value_is_refused_where_it_is_built() -> None:
    with pytest.raises(ValueError, match="slope 0, not 1"):
        Tail("bounded", 1.0)
    with pytest.raises(ValueError, match="finite, non-zero slope"):
        Tail("linear", 0.0)
    with pytest.raises(ValueError, match="slope ±inf"):
        Tail("superlinear", 2.0)
    with pytest.raises(ValueError, match="sorted and distinct"):
        _but("relu6", kinks=(6.0, 0.0))
    with pytest.raises(ValueError, match="a jump is a pair"):
        _but("relu", jumps=((1.0, 1.0),))
    assert Growth(Tail("bounded"), Tail("bounded"), 1.0).bounded
