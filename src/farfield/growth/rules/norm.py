"""Normalizations: what bounds a network whatever its input does, and what only looks as if it did."""

from __future__ import annotations

import math

import torch

from farfield.graph import describe
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

__all__: list[str] = []

INF = math.inf


@growth_rule("layer_norm", "rms_norm", "l2_normalize", "group_norm", "instance_norm")
def _norm(site: Site) -> Extent:
    """A value confined to [−r, r] for every finite input, then its affine part.

    With ε = 0 the norm is undefined where its denominator vanishes (a constant row where it is centered, a zero
    row otherwise): the claim then carries that as an assumption. An infinite argument has no normalized value.
    """
    spec, x, producer = describe(site.node).norm, site.extent(0), site.producers[0]
    if spec is None:
        return _running(site)
    what, shape = site.node.op, producer.shape if producer is not None else ()
    if x.rate == SINGULAR:
        return undefined(site.name, f"{what} of a value that may be infinite", x)
    if not spec.eps >= 0.0:
        return undefined(
            site.name, f"{what} with ε = {spec.eps:g}: only ε ≥ 0 keeps it from dividing by zero", x
        )
    if spec.order <= 0.0:
        return undefined(site.name, f"{what} by a p-norm with p ≤ 0", x)
    size = size_of(tuple(shape[d] for d in spec.axes)) / (spec.groups or 1)
    if spec.averaged and size <= spec.correction:
        text = f"a variance over {size:g} entries with correction {spec.correction:g} is 0/0"
        return undefined(site.name, text, x)
    # One entry against the size of its row; of a centered row at most √((n − 1)/n) of it.
    largest = math.sqrt(size - spec.correction) if spec.averaged else 1.0
    if spec.centered and math.isfinite(size):
        largest *= math.sqrt((size - 1.0) / size)
    bound = largest * (1.0 + 1e-12)
    value = interval(-bound, bound, x)
    if spec.eps == 0.0:
        row = "constant" if spec.centered else "zero"
        value = value.assuming(Reason(site.name, f"{what} has ε = 0: it is undefined on a {row} row"))
    if spec.weight is not None:
        value = multiply(value, site.extent(spec.weight), site.name)
    return value if spec.bias is None else add(value, site.extent(spec.bias), site.name)


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
    if _are_open(site, (3, 4)):
        return _open_running(site)
    if mean is None or variance is None:
        return undefined(site.name, "normalization by statistics that are not constants of the model", x)
    norm_eps = float(site.attributes.get("eps", 0.0) or 0.0)
    spread = variance.detach().to(torch.float64) + norm_eps
    if bool((spread <= 0).any()):
        return undefined(site.name, "a stored variance plus ε is not positive", x)
    weight, bias = site.tensors[1], site.tensors[2]
    if (site.present(1) and weight is None) or (site.present(2) and bias is None):
        return undefined(
            site.name, "normalization with an affine part that is not a constant of the model", x
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


def _are_open(site: Site, places: tuple[int, ...]) -> bool:
    """Constants of the model, without their values."""
    producers = [site.producers[k] for k in places]
    return all(
        p is not None and p.role == "constant" and site.tensors[k] is None
        for k, p in zip(places, producers, strict=True)
    )


def _open_running(site: Site) -> Extent:
    """The same for statistics whose values were left open: affine, if no variance plus ε can be 0."""
    x = site.extent(0)
    norm_eps = float(site.attributes.get("eps", 0.0) or 0.0)
    if not site.extent(4).lo + norm_eps > 0.0:
        return undefined(site.name, "a stored variance plus ε may not be positive", x)
    factor = Extent(CONSTANT, CONSTANT)
    if site.present(1):
        factor = multiply(factor, site.extent(1), site.name)
    value = add(multiply(x, factor, site.name), Extent(CONSTANT, CONSTANT), site.name)
    value = value if not site.present(2) else add(value, site.extent(2), site.name)
    return inherit(value, site.extent(4))


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
