"""FF006: in floating point the guarantee ends at a magnitude; say which."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from farfield.audit._context import Context
from farfield.audit._result import Finding, Outcome
from farfield.audit.rules import Judgment, Rule
from farfield.graph import OpaqueNodeError
from farfield.growth import Status

__all__ = ["RULE", "float_horizon"]

_ENOUGH = 1e12
"""Inputs beyond this are not expected of anybody; a guarantee that ends sooner is worth a warning."""
_FARTHEST = 39
"""Powers of ten below this are tried: float32 ends there."""


def float_horizon(context: Context) -> float | None:
    """Smallest power of ten λ at which the model, in its own types, leaves the float64 program along a ray.

    Leaves: not finite, or further off than 1% of the largest value seen; what has left is taken not to come back, so
    that the power is found by bisection, two evaluations a step. Of a large program every third power is tried, and
    the one behind the last at which it follows is given. None where the model cannot be run.
    """
    program, model = context.program, context.model
    first = None if model is None or program.capture == "modules" else context.one_sample()
    if first is None:
        return None
    source = torch.Generator().manual_seed(2)
    real = [s.kind == "real" for s in program.inputs]
    if not any(real):
        return math.inf
    wide = [torch.complex128 if t.is_complex() else torch.float64 for t in first]
    direction = [
        torch.randn(t.shape, generator=source, dtype=w) if r else t
        for t, w, r in zip(first, wide, real, strict=True)
    ]

    def left(exponent: int) -> bool:
        scale = 10.0**exponent
        own = [(scale * d).to(t.dtype) if r else t for d, t, r in zip(direction, first, real, strict=True)]
        if not all(bool(torch.isfinite(o).all()) for o in own if o.is_floating_point()):
            return True
        # The same rounded input on both sides: what is compared is the arithmetic, not the input's rounding.
        low = program.evaluate(*own, dtype=None, keep=program.outputs)
        if not all(bool(torch.isfinite(low[name]).all()) for name in program.outputs):
            return True
        high = program.evaluate(*own, keep=program.outputs)
        return any(_apart(low[name], high[name]) for name in program.outputs)

    step = 3 if program.is_large else 1
    begin, end = 0, _FARTHEST // step
    try:
        while begin < end:
            middle = (begin + end) // 2
            begin, end = (begin, middle) if left(step * middle) else (middle + 1, end)
    except (RuntimeError, TypeError, OpaqueNodeError):
        return None
    return 10.0 ** max(0, step * (end - 1) + 1) if step * end < _FARTHEST else math.inf


def _apart(own: Tensor, exact: Tensor) -> bool:
    a, b = own.to(exact.dtype), exact
    size = float(b.abs().max()) if b.numel() else 0.0
    return not bool(torch.isfinite(a).all()) or bool(((a - b).abs() > 0.01 * max(size, 1e-6) + 1e-6).any())


def check(context: Context) -> Judgment:
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
