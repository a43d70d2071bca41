"""The contract of every scalar function of the table, and entries that are wrong on purpose."""

import dataclasses
import functools
import math

import mpmath as mp
import pytest
import torch

from farfield.gaussian import ScalarFunction, Tail, scalar_function
from scalar_contract import CHECKS, DIGITS, enrolled

CASES = enrolled()


LONG = {"suprema", "image"}


@pytest.mark.parametrize(
    "check", [pytest.param(name, marks=[pytest.mark.full] if name in LONG else []) for name in CHECKS]
)
@pytest.mark.parametrize("label", CASES)
def test_contract(label: str, check: str) -> None:
    with mp.workdps(DIGITS):
        CHECKS[check](CASES[label].entry, CASES[label])


def _shifted(f: ScalarFunction, by: float) -> dict[str, object]:
    return {"function": lambda x: f.function(x) + by}


WRONG = {
    "function": ("tanh()", "function", lambda f: _shifted(f, 1e-13)),
    "loss": ("sigmoid()", "function", lambda f: {"loss": 0.0}),
    "lo": ("gelu()", "range", lambda f: {"lo": -0.1699712074799036}),
    "lo too wide": ("gelu()", "range", lambda f: {"lo": -0.18}),
    "hi": ("atan()", "range", lambda f: {"hi": 1.5707963}),
    "hi for nothing": ("sigmoid()", "range", lambda f: {"hi": math.inf}),
    "shape": ("gelu()", "shape", lambda f: {"shape": "increasing"}),
    "shape: falling": ("erfc()", "shape", lambda f: {"shape": "increasing"}),
    "valley": ("silu()", "shape", lambda f: {"valley": -1.27}),
    "valley: not the lowest": ("mish()", "valley", lambda f: {"valley": -1.19}),
    "jump left out": ("softplus(beta=0.5, threshold=1.5)", "signs", lambda f: {"jumps": ()}),
    "positive": ("relu()", "signs", lambda f: {"left": dataclasses.replace(f.left, remainder="flat")}),
    "left slope": ("leaky_relu()", "tails", lambda f: {"left": Tail("linear", 0.02, 0.0, "exact")}),
    "offset": ("tanhshrink()", "tails", lambda f: {"right": Tail("linear", 1.0, 1.0, "flat")}),
    "remainder kind": ("softsign()", "tails", lambda f: {"right": Tail("bounded", 0.0, 1.0, "flat")}),
    "remainder kind: exact": ("atan()", "tails", lambda f: {"left": dataclasses.replace(f.left, remainder="exact")}),
    "no limit": ("sin()", "tails", lambda f: {"right": Tail("bounded", 0.0, 0.0, "flat")}),
    "remainder": ("softplus()", "remainder", lambda f: {"remainder": (0.0, 0.6931471805599452)}),
    "remainder_beyond": ("tanh()", "remainder", lambda f: {"remainder_beyond": lambda s: torch.exp(-2 * s)}),
    "remainder_beyond rises": ("relu()", "remainder", lambda f: {"remainder_beyond": lambda s: s}),
    "slope": ("mish()", "suprema", lambda f: {"slope": 1.0884981612517278}),
    "slope too steep": ("sigmoid()", "suprema", lambda f: {"slope": 0.26}),
    "curvature": ("gelu(approximate=tanh)", "suprema", lambda f: {"curvature": 0.7978845608028653}),
    "third": ("erf()", "suprema", lambda f: {"third": 2.25675833419102}),
    "curvature_beyond": ("silu()", "curvature_beyond", lambda f: {"curvature_beyond": lambda r: torch.exp(-r)}),
    "kink left out": ("hardswish()", "kinks", lambda f: {"kinks": (-3.0,), "bends": ((-3.0, -0.5),)}),
    "kink for nothing": ("tanh()", "kinks", lambda f: {"kinks": (0.0,)}),
    "bends": ("selu()", "kinks", lambda f: {"bends": ((0.0, -0.7),)}),
    "jumps": ("hardshrink()", "jumps", lambda f: {"jumps": ((-0.5, -0.5, 0.0), (0.5, 0.0, 0.4))}),
    "a jump unsaid": ("hardshrink()", "jumps", lambda f: {"slope": 1.0, "jumps": ()}),
    "half_planes": ("mish()", "half_planes", lambda f: {"half_planes": ((1.0, -1.0, 0.1403029012664815),)}),
    "half_planes far off": ("gelu()", "half_planes", lambda f: {"half_planes": ((1.0, 0.0, 0.2),)}),
    "pieces": ("hardsigmoid()", "pieces", lambda f: {"pieces": ((0.0, 0.0), (0.1666, 0.5), (0.0, 1.0))}),
    "homogeneous": ("softshrink()", "homogeneous", lambda f: {"homogeneous": True}),
    "saturates": ("silu()", "saturates", lambda f: {"saturates": True}),
    "roughness": ("softplus()", "roughness", lambda f: {"roughness": 1e-9}),
    "rough_from": ("softplus()", "roughness", lambda f: {"rough_from": 21.0}),
    "image: valley": ("gelu()", "image", lambda f: {"valley": 5.0}),
    "image: jump": ("threshold(threshold=1.5, value=20.0)", "image", lambda f: {"jumps": ()}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_entry_is_noticed(name: str) -> None:
    label, check, change = WRONG[name]
    case = CASES[label]
    wrong = dataclasses.replace(case.entry, **change(case.entry))
    with mp.workdps(DIGITS), pytest.raises(AssertionError):
        CHECKS[check](wrong, case)


def test_every_field_has_a_wrong_entry() -> None:
    touched = {key for label, _, change in WRONG.values() for key in change(CASES[label].entry)}
    untested = {"name", "smooth"}
    assert {field.name for field in dataclasses.fields(ScalarFunction)} - untested == touched


def test_other_kinds_of_function_are_not_described() -> None:
    for name, attributes in (
        ("celu", {"alpha": -1.0}),
        ("elu", {"input_scale": -1.0}),
        ("softplus", {"beta": -1.0}),
        ("hardtanh", {"min_val": 1.0, "max_val": -1.0}),
        ("threshold", {"threshold": "s0", "value": [1]}),
        ("exp", {}),
        ("matmul", {}),
    ):
        assert scalar_function(name, attributes) is None


def test_one_value_per_name_and_parameters() -> None:
    assert scalar_function("elu", {"alpha": 0.5}) is scalar_function("elu", {"alpha": 0.5})
    assert scalar_function("elu", {"alpha": 0.5}) != scalar_function("elu", {"alpha": 0.6})


def test_what_the_operators_compute_is_what_is_described() -> None:
    x = torch.linspace(-7, 7, 1401, dtype=torch.float64)
    pairs = {
        "softsign": torch.nn.functional.softsign,
        "hardsigmoid": torch.nn.functional.hardsigmoid,
        "tanhshrink": torch.nn.functional.tanhshrink,
        "selu": torch.selu,
        "celu": functools.partial(torch.celu, alpha=1.0),
    }
    for name, function in pairs.items():
        entry = scalar_function(name)
        assert entry is not None
        torch.testing.assert_close(entry(x), function(x), rtol=1e-13, atol=1e-13)
