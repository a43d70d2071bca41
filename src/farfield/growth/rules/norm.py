"""Normalisations: what bounds a network whatever its input does, and what only looks as if it did."""

from __future__ import annotations

import math

import torch

from farfield.growth._extent import (
    Extent,
    Reason,
    add,
    inherit,
    interval,
    multiply,
    undefined,
    widened,
)
from farfield.growth._rate import BOUNDED, CONSTANT, SINGULAR
from farfield.growth._registry import Site, growth_rule, size_of

__all__ = ["normalised"]

INF = math.inf


def normalised(site: Site, size: float, weight: int | None, bias: int | None, what: str) -> Extent:
    """A value confined to [−size, size] for every finite input, then its affine part.

    With ε = 0 the norm is undefined where its denominator vanishes (a constant row for LayerNorm, a zero row
    for the others): the claim then carries that as an assumption. An argument that may be infinite has no
    normalised value.
    """
    x = site.extent(0)
    if x.rate == SINGULAR:
        return undefined(site.name, f"{what} of a value that may be infinite", x)
    norm_eps = float(site.attributes.get("eps", 0.0) or 0.0)
    if norm_eps < 0.0:
        return undefined(site.name, f"{what} with a negative ε = {norm_eps:g} can divide by zero", x)
    bound = size * (1.0 + 1e-12)
    value = interval(-bound, bound, x)
    if norm_eps == 0.0:
        row = "constant" if what in ("LayerNorm", "GroupNorm", "InstanceNorm") else "zero"
        value = value.assuming(Reason(site.name, f"{what} has ε = 0: it is undefined on a {row} row"))
    if weight is not None and site.present(weight):
        value = multiply(value, site.extent(weight), site.name)
    if bias is not None and site.present(bias):
        value = add(value, site.extent(bias), site.name)
    return value


def _centred_bound(count: float, correction: float = 0.0) -> float:
    """Largest |ẑ_i| of a centred row of ``count`` entries scaled to (corrected) unit variance: √((n−1)(n−c)/n)."""
    if math.isinf(count):
        return INF
    return math.sqrt(max(0.0, (count - 1.0) * (count - correction) / count))


@growth_rule("layer_norm")
def _layer_norm(site: Site) -> Extent:
    count = site.length(0, tuple(site.attributes["dim"]))
    correction = float(site.attributes.get("correction", 0))
    if count <= correction:
        return undefined(
            site.name, f"a variance over {count:g} entries with correction {correction:g} is 0/0"
        )
    return normalised(site, _centred_bound(count, correction), 1, 2, "LayerNorm")


@growth_rule("rms_norm")
def _rms_norm(site: Site) -> Extent:
    count = site.length(0, tuple(site.attributes["dim"]))
    return normalised(site, math.sqrt(count), 1, None, "RMSNorm")


@growth_rule("l2_normalize")
def _l2_normalize(site: Site) -> Extent:
    if float(site.attributes.get("p", 2.0)) <= 0.0:
        return undefined(site.name, "normalisation by a p-norm with p ≤ 0", site.extent(0))
    return normalised(site, 1.0, None, None, "L2 normalisation")


@growth_rule("group_norm")
def _group_norm(site: Site) -> Extent:
    producer = site.producers[0]
    shape = producer.shape if producer is not None else ()
    count = size_of(shape[1:]) / float(site.attributes["num_groups"])
    return normalised(site, _centred_bound(count), 1, 2, "GroupNorm")


@growth_rule("instance_norm")
def _instance_norm(site: Site) -> Extent:
    if not site.attributes.get("use_input_stats", True):
        return _running(site)
    producer = site.producers[0]
    count = size_of(producer.shape[2:]) if producer is not None else INF
    return normalised(site, _centred_bound(count), 1, 2, "InstanceNorm")


@growth_rule("batch_norm")
def _batch_norm(site: Site) -> Extent:
    """Affine in eval mode: it bounds nothing. By batch statistics it depends on the other rows: not a function."""
    if site.attributes.get("training"):
        return undefined(
            site.name,
            "BatchNorm uses the statistics of the batch at hand; call model.eval() for the function that is served",
            site.extent(0),
        )
    return _running(site)


def _running(site: Site) -> Extent:
    """(x − mean)/√(var + ε)·weight + bias with stored statistics, exactly as affine as it looks."""
    x = site.extent(0)
    mean, variance = site.tensors[3], site.tensors[4]
    if mean is None or variance is None:
        return undefined(site.name, "normalisation by statistics that are not constants of the model", x)
    norm_eps = float(site.attributes.get("eps", 0.0) or 0.0)
    spread = variance.detach().to(torch.float64) + norm_eps
    if bool((spread <= 0).any()):
        return undefined(site.name, "a stored variance plus ε is not positive", x)
    weight, bias = site.tensors[1], site.tensors[2]
    if (site.present(1) and weight is None) or (site.present(2) and bias is None):
        return undefined(
            site.name, "normalisation with an affine part that is not a constant of the model", x
        )
    factor = spread.rsqrt()
    if weight is not None:
        factor = factor * weight.detach().to(torch.float64)
    offset = -mean.detach().to(torch.float64) * factor
    if bias is not None:
        offset = offset + bias.detach().to(torch.float64)
    constant_factor = interval(float(factor.min()), float(factor.max()), gap=float(factor.abs().min()))
    low, high = float(offset.min()), float(offset.max())
    slack = 1e-12 * max(abs(low), abs(high))
    product = multiply(x, constant_factor, site.name)
    return add(product, interval(low - slack, high + slack), site.name)


@growth_rule("softmax")
def _softmax(site: Site) -> Extent:
    x = site.extent(0)
    if x.upper == SINGULAR:
        return undefined(site.name, "softmax of a value that may be +∞", x)
    value = interval(0.0, 1.0, x)
    if x.lower == SINGULAR:
        value = value.assuming(Reason(site.name, "no row of the softmax is masked (−∞) entirely"))
    return value


@growth_rule("log_softmax")
def _log_softmax(site: Site) -> Extent:
    x = site.extent(0)
    if x.upper == SINGULAR:
        return undefined(site.name, "log-softmax of a value that may be +∞", x)
    count = site.length(0, (site.attributes["dim"],))
    least = CONSTANT if x.constant else BOUNDED
    lo = -INF
    if math.isfinite(x.lo) and math.isfinite(x.hi) and math.isfinite(count):
        lo = widened(x.lo - x.hi - math.log(count), up=False) - 1e-12
    return inherit(Extent(max(least, x.rate), least, lo, 0.0), x)
