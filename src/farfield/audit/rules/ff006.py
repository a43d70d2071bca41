"""FF006: in floating point the guarantee ends at a magnitude; say which."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from farfield.audit._context import Context
from farfield.audit._result import Finding, Outcome
from farfield.audit.rules import Judgement, Rule
from farfield.graph import OpaqueNodeError
from farfield.growth import Status

__all__ = ["RULE", "float_horizon"]

_ENOUGH = 1e12
"""Inputs beyond this are not expected of anybody; a guarantee that ends sooner is worth a warning."""


def float_horizon(context: Context) -> float | None:
    """Smallest power of ten λ at which the model, in its own types, leaves the float64 program along a ray.

    Leaves: not finite, or further off than 1% of the largest value seen. None where the model cannot be run.
    """
    program, model = context.program, context.model
    if model is None or program.capture == "modules":
        return None
    source = torch.Generator().manual_seed(2)
    first = context.one_sample()
    if first is None:
        return None
    real = [s.kind == "real" for s in program.inputs]
    direction = [
        torch.randn(t.shape, generator=source, dtype=torch.float64) if r else t
        for t, r in zip(first, real, strict=True)
    ]
    for exponent in range(1, 39):
        scale = 10.0**exponent
        exact = [scale * d if r else d for d, r in zip(direction, real, strict=True)]
        own = [e.to(t.dtype) if r else t for e, t, r in zip(exact, first, real, strict=True)]
        # The same rounded input on both sides: what is compared is the arithmetic, not the input's rounding.
        wide = [
            o.double() if r and bool(torch.isfinite(o).all()) else e
            for o, e, r in zip(own, exact, real, strict=True)
        ]
        with torch.no_grad():
            try:
                low = program.evaluate(*own, dtype=None, keep=list(program.outputs))
                high = program.evaluate(*wide, keep=list(program.outputs))
            except (RuntimeError, TypeError, OpaqueNodeError):
                return None
        for name in program.outputs:
            a, b = low[name].double(), high[name].double()
            size = float(b.abs().max()) if b.numel() else 0.0
            if (
                not bool(torch.isfinite(a).all())
                or float((a - b).abs().max()) > 0.01 * max(size, 1e-6) + 1e-6
            ):
                return scale
    return math.inf


def check(context: Context) -> Judgement:
    """Fires when the guarantee ends before 10¹², or when a norm has ε = 0."""
    if not context.norms:
        return Outcome.NOT_APPLICABLE, (), "the program has no norm"
    if context.status is not Status.BOUNDED:
        return Outcome.NOT_APPLICABLE, (), "there is no guarantee to lose"
    findings = []
    for node in context.norms:
        epsilon = node.attributes.get("eps")
        if epsilon == 0:
            findings.append(
                Finding(
                    "FF006",
                    "warning",
                    f"{node.module_path or node.name} has ε = 0: an input without variance divides by zero: nan.",
                    context.place(node.name),
                    "Give it a small ε (torch's default is 1e-5).",
                    {"eps": 0.0},
                )
            )
    magnitude = float_horizon(context)
    if magnitude is not None and magnitude < _ENOUGH:
        first = context.norms[0]
        types = sorted(
            {str(s.dtype).removeprefix("torch.") for s in context.program.inputs if s.kind == "real"}
        )
        findings.append(
            Finding(
                "FF006",
                "warning",
                f"In {', '.join(types)} the model stops following real arithmetic at inputs of size about "
                f"{magnitude:.0e}: the bound holds for the computed output only below that.",
                context.place(first.name),
                "Run the norm in a wider type, or clip the input below that magnitude.",
                {"magnitude": magnitude, "dtypes": types},
            )
        )
    if findings:
        return Outcome.FAILED, findings, ""
    if magnitude is None:
        return Outcome.UNKNOWN, (), "the model could not be run in its own types"
    until = "as far as the type reaches" if math.isinf(magnitude) else f"up to inputs of size {magnitude:.0e}"
    return Outcome.PASSED, (), f"floating point follows real arithmetic {until} along the ray tried"


def _mlp(epsilon: float) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16, eps=epsilon), nn.ReLU(), nn.Linear(16, 1))


def triggers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """ε = 0."""
    return _mlp(0.0), (torch.zeros(1, 6),)


def passes() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """ε = 1e-5 in float32: the guarantee holds to about 10¹⁸."""
    return _mlp(1e-5), (torch.zeros(1, 6),)


RULE = Rule("FF006", "the guarantee ends at a magnitude in floating point", check, triggers, passes)
