"""Jets of normalisations: a growing row is replaced by its direction, and what is left is a limit.

For LayerNorm: if the centred row grows, the limit is LayerNorm with ε = 0 of its leading coefficients; if
only power 0 is left of it, LayerNorm with its ε; both come out of one series for (variance + ε)^{−1/2}. [P1],
and the far-field section of the theory page.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from farfield.growth._jet import ABOVE, Jet, add, constant, multiply, scale, shift, unknown_like
from farfield.growth._leading import difference, maximum
from farfield.growth._series import power
from farfield.growth._step import Step, jet_rule
from farfield.growth.jets.reduce import mean_over, sum_over

__all__ = ["confined", "normalised"]

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


def normalised(x: Jet, mean_square: Jet, norm_eps: float, mode: str, lowest: float) -> Jet:
    """X divided by the stabilised root of a mean square, as a bounded jet."""
    return confined(multiply(x, inverse_root(mean_square, norm_eps, mode, lowest - _reach(x)), lowest))


def _reach(jet: Jet) -> float:
    """The highest power of a jet, at least 0: how much a factor of it lifts."""
    return max(0.0, *jet.powers)


def _squares(jet: Jet, dims: tuple[int, ...], lowest: float) -> Jet:
    # The root of a square of degree 2p is divided into degree p: keep what the quotient can feel.
    return sum_over(multiply(jet, jet, min(lowest, 0.0) - _reach(jet)), dims)


def _affine(
    step: Step, value: Jet, weight: int | None, bias: int | None, shape: tuple[int, ...] | None
) -> Jet:
    if weight is not None and step.present(weight):
        value = multiply(value, _shaped(step.jet(weight), shape), step.lowest)
    if bias is not None and step.present(bias):
        value = add(value, _shaped(step.jet(bias), shape))
    return value


def _shaped(jet: Jet, shape: tuple[int, ...] | None) -> Jet:
    if shape is None:
        return jet
    count = len(jet.powers)
    return Jet(
        jet.powers,
        jet.values.reshape(count, *shape),
        jet.errors.reshape(count, *shape),
        jet.full_floor().reshape(shape),
    )


def _channels(x: Jet) -> tuple[int, ...]:
    """The shape of one number per channel (axis 1)."""
    return (x.shape[1], *(1,) * (x.ndim - 2))


@jet_rule("layer_norm")
def _layer_norm(step: Step) -> Jet:
    x, dims = step.jet(0), tuple(step.attributes["dim"])
    count = math.prod(x.shape[d] for d in dims)
    freedom = count - float(step.attributes.get("correction", 0))
    if freedom <= 0:
        return unknown_like(x)
    centred = difference(x, mean_over(x, dims))
    variance = scale(_squares(centred, dims, step.lowest), 1.0 / freedom)
    norm_eps, mode = float(step.attributes["eps"]), step.attributes.get("eps_mode", "inside")
    return _affine(step, normalised(centred, variance, norm_eps, mode, step.lowest), 1, 2, None)


@jet_rule("rms_norm")
def _rms_norm(step: Step) -> Jet:
    x, dims = step.jet(0), tuple(step.attributes["dim"])
    count = math.prod(x.shape[d] for d in dims)
    mean_square = scale(_squares(x, dims, step.lowest), 1.0 / count)
    norm_eps, mode = float(step.attributes["eps"]), step.attributes.get("eps_mode", "inside")
    return _affine(step, normalised(x, mean_square, norm_eps, mode, step.lowest), 1, None, None)


@jet_rule("l2_normalize")
def _l2_normalize(step: Step) -> Jet:
    x, dims = step.jet(0), tuple(step.attributes["dim"])
    norm_eps, mode = float(step.attributes["eps"]), step.attributes.get("eps_mode", "clamp")
    if float(step.attributes.get("p", 2.0)) != 2.0:
        return unknown_like(x, ABOVE)
    return normalised(x, _squares(x, dims, step.lowest), norm_eps, mode, step.lowest)


@jet_rule("group_norm")
def _group_norm(step: Step) -> Jet:
    x, groups = step.jet(0), int(step.attributes["num_groups"])
    shape = tuple(x.shape)
    grouped = _shaped(x, (shape[0], groups, -1))
    centred = difference(grouped, mean_over(grouped, (2,)))
    variance = scale(_squares(centred, (2,), step.lowest), 1.0 / grouped.shape[2])
    value = normalised(centred, variance, float(step.attributes["eps"]), "inside", step.lowest)
    return _affine(step, _shaped(value, shape), 1, 2, _channels(x))


@jet_rule("instance_norm")
def _instance_norm(step: Step) -> Jet:
    if not step.attributes.get("use_input_stats", True):
        return _running(step)
    x = step.jet(0)
    dims = tuple(range(2, x.ndim))
    centred = difference(x, mean_over(x, dims))
    count = math.prod(x.shape[d] for d in dims)
    variance = scale(_squares(centred, dims, step.lowest), 1.0 / count)
    value = normalised(centred, variance, float(step.attributes["eps"]), "inside", step.lowest)
    return _affine(step, value, 1, 2, _channels(x))


@jet_rule("batch_norm")
def _batch_norm(step: Step) -> Jet:
    if step.attributes.get("training"):
        return unknown_like(step.jet(0))
    return _running(step)


def _running(step: Step) -> Jet:
    """The affine map by stored statistics."""
    x = step.jet(0)
    shape = _channels(x)
    spread = shift(_shaped(step.jet(4), shape), float(step.attributes["eps"]))
    centred = difference(x, _shaped(step.jet(3), shape))
    factor = power(spread, -0.5, step.lowest - _reach(centred))
    return _affine(step, multiply(centred, factor, step.lowest), 1, 2, shape)
