"""Linear maps: weights that are constants are read, so that dead rows and one-signed weights count."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from farfield.graph._wide import in_blocks
from farfield.growth._extent import (
    ZERO,
    Extent,
    Reason,
    add,
    averaged,
    inherit,
    join,
    multiply,
    stretch,
)
from farfield.growth._rate import BOUNDED, CONSTANT, SINGULAR
from farfield.growth._registry import Site, growth_rule, size_of
from farfield.growth.rules.arithmetic import symmetric

__all__ = ["affine", "bilinear"]

INF = math.inf


def affine(value: Extent, weight: Tensor, node: str) -> Extent:
    """Σ_i w_ji v_i for every row j of a constant matrix: an interval from the signed row sums.

    Positive weights carry a side of v to the same side, negative ones to the other; rows of zeros carry
    nothing. Cost: one pass over the weights where both ends of v are 0 or infinite, two otherwise; no copy.
    """
    weight = weight.detach()
    if weight.numel() == 0:
        return inherit(ZERO, value)
    least, most = weight.aminmax(dim=1)
    positive, negative = most > 0, least < 0
    zero = torch.zeros(len(weight), dtype=torch.float64, device=weight.device)
    if all(end == 0.0 or math.isinf(end) for end in (value.lo, value.hi)):
        up, down, slack = positive.to(torch.float64), negative.to(torch.float64), zero
    else:
        size, total = _row_sums(weight)
        up = torch.where(positive, (size + total) / 2, zero)
        down = torch.where(negative, (size - total) / 2, zero)
        slack = 1e-12 * size

    def reach(far: float, near: float) -> Tensor:
        """Σ w⁺·far − Σ w⁻·near without 0·∞."""
        first = torch.where(positive, (up + math.copysign(1.0, far) * slack) * far, zero)
        second = torch.where(negative, (down - math.copysign(1.0, near) * slack) * near, zero)
        return first - second

    hi = float(reach(value.hi, value.lo).max())
    lo = -float(reach(-value.lo, -value.hi).max())
    any_up, any_down = bool(positive.any()), bool(negative.any())
    floor = CONSTANT if value.constant else BOUNDED
    upper = max(floor, value.upper if any_up else floor, value.lower if any_down else floor)
    lower = max(floor, value.lower if any_up else floor, value.upper if any_down else floor)
    result = inherit(Extent(lower, upper, lo, hi), value)
    if value.rate == SINGULAR:
        return result.doubting(Reason(node, "a linear map adds and subtracts values that may be infinite"))
    return result


def _row_sums(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_i |w_ji| and Σ_i w_ji in float64."""
    sums = [(block.sum(1), block.abs_().sum(1)) for block in in_blocks(weight, torch.float64)]
    totals, sizes = zip(*sums, strict=True)
    return torch.cat(sizes), torch.cat(totals)


def bilinear(a: Extent, b: Extent, count: float, node: str) -> Extent:
    """Σ over ``count`` products v·w of two moving tensors."""
    product = multiply(a, b, node)
    if product.rate == SINGULAR:
        product = product.doubting(Reason(node, "a sum of products that may be infinite"))
    return stretch(product, count)


def _readable(site: Site, index: int) -> Tensor | None:
    """A constant real argument whose entries are all finite."""
    tensor = site.tensors[index]
    if tensor is None or not tensor.is_floating_point() or not site.extent(index).known:
        return None
    return tensor


def _with_bias(value: Extent, site: Site, index: int) -> Extent:
    return add(value, site.extent(index), site.name) if site.present(index) else value


@growth_rule("linear")
def _linear(site: Site) -> Extent:
    weight = _readable(site, 1)
    if weight is not None and weight.ndim == 2:
        return _with_bias(affine(site.extent(0), weight, site.name), site, 2)
    count = site.length(1, (-1,))
    value = bilinear(site.extent(0), site.extent(1), count, site.name)
    if site.complex:
        value = _complex_sum(site, 0, 1, count)
    return _with_bias(value, site, 2)


def _complex_sum(site: Site, left: int, right: int, count: float) -> Extent:
    """A sum of complex products: each part of a product is two products of parts."""
    return symmetric(
        bilinear(symmetric(site.extent(left)), symmetric(site.extent(right)), count, site.name), 2.0
    )


@growth_rule("matmul")
def _matmul(site: Site) -> Extent:
    return _product(site, 0, 1)


def _product(site: Site, left: int, right: int) -> Extent:
    a, b = site.extent(left), site.extent(right)
    count = site.length(left, (-1,))
    if site.complex:
        return _complex_sum(site, left, right, count)
    right_tensor, left_tensor = _readable(site, right), _readable(site, left)
    if right_tensor is not None and right_tensor.ndim == 2:
        return affine(a, right_tensor.T, site.name)
    if left_tensor is not None and left_tensor.ndim == 2:
        return affine(b, left_tensor, site.name)
    if _is_softmax_over_last(site, left):
        return inherit(averaged(b), a)
    return bilinear(a, b, count, site.name)


def _is_softmax_over_last(site: Site, index: int) -> bool:
    """The operand's rows are non-negative and sum to 1, so a product with it averages."""
    producer = site.producers[index]
    return (
        producer is not None
        and producer.op == "softmax"
        and producer.attributes.get("dim") == len(producer.shape) - 1
    )


@growth_rule("conv")
def _conv(site: Site) -> Extent:
    padded = any(site.attributes.get("padding") or ())
    value = join(site.extent(0), ZERO) if padded else site.extent(0)
    weight = _readable(site, 1)
    if weight is not None:
        return _with_bias(affine(value, weight.flatten(1), site.name), site, 2)
    producer = site.producers[1]
    count = size_of(producer.shape[1:]) if producer is not None else INF
    return _with_bias(bilinear(value, site.extent(1), count, site.name), site, 2)


@growth_rule("conv_transpose")
def _conv_transpose(site: Site) -> Extent:
    # Strides and borders leave out taps, which is the same as feeding them a zero.
    value = join(site.extent(0), ZERO)
    weight = _readable(site, 1)
    if weight is not None:
        return _with_bias(affine(value, weight.transpose(0, 1).flatten(1), site.name), site, 2)
    producer = site.producers[1]
    count = size_of((producer.shape[0], *producer.shape[2:])) if producer is not None else INF
    return _with_bias(bilinear(value, site.extent(1), count, site.name), site, 2)


@growth_rule("embedding_bag")
def _embedding_bag(site: Site) -> Extent:
    """Rows of a table summed (mode 0, perhaps weighted), averaged or maximized; an empty bag is 0."""
    rows = _picked(site)
    if site.present(3):
        rows = multiply(rows, site.extent(3), site.name)
    if int(site.attributes.get("mode", 0)) == 0:
        producer = site.producers[1]
        rows = stretch(rows, size_of(producer.shape) if producer is not None else INF)
    return inherit(join(rows, ZERO), *site.everything())


def _picked(site: Site) -> Extent:
    """Rows of a table at moving places: they move, boundedly, even if the table does not."""
    table, index = site.extent(0), site.extent(1)
    if table.constant and not index.constant:
        return replace(table, lower=max(table.lower, BOUNDED), upper=max(table.upper, BOUNDED))
    return table
