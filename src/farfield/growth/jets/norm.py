"""Jets of normalizations: a growing row is replaced by its direction, and what is left is a limit.

For LayerNorm: if the centered row grows, the limit is LayerNorm with ε = 0 of its leading coefficients; if
only power 0 is left of it, LayerNorm with its ε; both come out of one series for (variance + ε)^{−1/2}. [P1],
and the far-field section of the theory page.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from farfield.graph import describe
from farfield.growth._jet import ABOVE, Jet, add, constant, multiply, scale, shift, unknown_like
from farfield.growth._leading import difference, maximum
from farfield.growth._series import power
from farfield.growth._step import Step, jet_rule
from farfield.growth.jets.linear import reshaped
from farfield.growth.jets.reduce import mean_over, sum_over

__all__ = ["confined", "normalized"]

INF = math.inf


def confined(jet: Jet) -> Jet:
    """A value known to be bounded whatever the series says: positive powers are 0, doubt is at most O(1)."""
    keep = [k for k, p in enumerate(jet.powers) if p <= 0.0]
    floor = torch.where(jet.floor > 0.0, ABOVE, jet.floor)
    if not keep:
        return replace(unknown_like(jet), floor=floor)
    values, errors = jet.values[keep], jet.errors[keep]
    sound = torch.isfinite(values)
    return Jet(
        tuple(jet.powers[k] for k in keep),
        torch.where(sound, values, 0.0),
        torch.where(sound & torch.isfinite(errors), errors, 0.0),
        floor,
    )


def inverse_root(square: Jet, norm_eps: float, mode: str, lowest: float) -> Jet:
    """1/√(v + ε), 1/(√v + ε) or 1/max(√v, ε)."""
    # A decaying series in 1/λ is divided by here, so powers below the cut still matter to those above it.
    if mode == "inside":
        return power(shift(square, norm_eps), -0.5, lowest)
    root = power(square, 0.5, lowest)
    if mode == "outside":
        return power(shift(root, norm_eps), -1.0, lowest)
    limit = constant(torch.full((1,) * root.ndim, norm_eps, dtype=torch.float64, device=root.values.device))
    return power(maximum(root, limit), -1.0, lowest)


def normalized(x: Jet, mean_square: Jet, norm_eps: float, mode: str, lowest: float) -> Jet:
    """x divided by the stabilized root of a mean square, as a bounded jet."""
    return confined(multiply(x, inverse_root(mean_square, norm_eps, mode, lowest - _reach(x)), lowest))


def _reach(jet: Jet) -> float:
    """The highest power of a jet, at least 0: how much a factor of it lifts."""
    return max(0.0, *jet.powers)


def _squares(jet: Jet, dims: tuple[int, ...], lowest: float) -> Jet:
    # The root of a square of degree 2p is divided into degree p: keep what the quotient can feel.
    return sum_over(multiply(jet, jet, min(lowest, 0.0) - _reach(jet)), dims)


def _affine(step: Step, value: Jet, weight: int | None, bias: int | None, axes: tuple[int, ...]) -> Jet:
    """Times weight, plus bias, each laid out along the given axes."""
    shape = tuple(n if d in axes else 1 for d, n in enumerate(value.shape))
    if weight is not None and step.present(weight):
        value = multiply(value, reshaped(step.jet(weight), shape), step.lowest)
    if bias is not None and step.present(bias):
        value = add(value, reshaped(step.jet(bias), shape))
    return value


@jet_rule("layer_norm", "rms_norm", "l2_normalize", "group_norm", "instance_norm")
def _norm(step: Step) -> Jet:
    spec, x = describe(step.node).norm, step.jet(0)
    if spec is None:
        return _running(step)
    if spec.order != 2.0:
        return unknown_like(x, ABOVE)
    shape = tuple(x.shape)
    freedom = spec.count(spec.size(shape))
    if freedom <= 0:
        return unknown_like(x)
    groups, axes = reshaped(x, (shape[0], spec.groups, -1)) if spec.groups else x, spec.axes
    axes = (2,) if spec.groups else axes
    centered = difference(groups, mean_over(groups, axes)) if spec.centered else groups
    square = scale(_squares(centered, axes, step.lowest), 1.0 / freedom)
    value = reshaped(normalized(centered, square, spec.eps, spec.eps_mode, step.lowest), shape)
    return _affine(step, value, spec.weight, spec.bias, spec.parameter_axes)


@jet_rule("batch_norm")
def _batch_norm(step: Step) -> Jet:
    if step.attributes.get("training"):
        return unknown_like(step.jet(0))
    return _running(step)


def _running(step: Step) -> Jet:
    """The affine map by stored statistics."""
    x = step.jet(0)
    shape = (x.shape[1], *(1,) * (x.ndim - 2))
    spread = shift(reshaped(step.jet(4), shape), float(step.attributes["eps"]))
    centered = difference(x, reshaped(step.jet(3), shape))
    factor = power(spread, -0.5, step.lowest - _reach(centered))
    return _affine(step, multiply(centered, factor, step.lowest), 1, 2, (1,))
