"""Reading and writing at places that other tensors name: exact where the places are known, a hull where not."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield.certify.intervals._fallback import from_growth
from farfield.certify.intervals._interval import Interval, gamma, hull, inflate, point, spread
from farfield.certify.intervals._registry import Bounds, Place, interval_rule

__all__: list[str] = []


def _places(place: Place, start: int) -> list[Tensor | None] | None:
    """The index tensors, ``None`` where one of them is not known."""
    found: list[Tensor | None] = []
    for index in range(start, len(place.operands)):
        if not place.present(index):
            found.append(None)
            continue
        known = place.indices(index)
        if known is None:
            return None
        found.append(known)
    return found


@interval_rule("index")
def _index(place: Place) -> Interval:
    x, known = place.interval(0), _places(place, 1)
    if known is not None:
        return x.map(lambda end: place.compute(end, *known))
    dims = tuple(i - 1 for i in range(1, len(place.operands)) if place.present(i))
    if any(p is not None and p.dtype == torch.bool for p in place.producers[1:]):
        raise place.refuse("a boolean index that is not known: how many entries it picks is not either")
    return _any_along(place, x, dims)


def _any_along(place: Place, x: Interval, dims: tuple[int, ...]) -> Interval:
    """Any entry along these axes: their extremes, read at index 0 wherever an index is not known."""
    wide = Interval(x.lo.amin(dims, keepdim=True), x.hi.amax(dims, keepdim=True)).expand(x.shape)
    zeros = [
        torch.zeros(place.interval(i).shape, dtype=torch.int64) if place.present(i) else None
        for i in range(1, len(place.operands))
    ]
    return wide.map(lambda end: place.compute(end, *zeros))


@interval_rule("index_select", "gather")
def _along_axis(place: Place) -> Interval:
    x, index = place.interval(0), place.indices(1)
    if index is not None:
        return x.map(lambda end: place.compute(end, index))
    return _any_along(place, x, (int(place.attributes["dim"]),))


@interval_rule("take")
def _take(place: Place) -> Interval:
    x, index = place.interval(0), place.indices(1)
    if index is not None:
        return x.map(lambda end: place.compute(end, index))
    return place.whole(0).expand(place.shape)


@interval_rule("one_hot")
def _one_hot(place: Place) -> Interval:
    index = place.indices(0)
    return spread(0.0, 1.0, place.shape) if index is None else point(place.compute(index))


@interval_rule("bucketize")
def _bucketize(place: Place) -> Interval:
    """How many boundaries lie below: rises with the entry, falls with every boundary."""
    x, edges = place.interval(0), place.interval(1)
    low, high = edges.lo.sort().values, edges.hi.sort().values
    return Interval(place.compute(x.lo, high).double(), place.compute(x.hi, low).double())


@interval_rule("searchsorted")
def _searchsorted(place: Place) -> Interval:
    """Rises with the entry where the boundaries are known; a search among others may end anywhere."""
    edges, x = place.interval(0), place.operand(1, "input")
    order = place.indices(2) if place.present(2) else None
    if not edges.degenerate or (place.present(2) and order is None):
        return spread(0.0, float(edges.shape[-1]), place.shape)
    return Interval(*(place.compute(edges.lo, end, order).double() for end in (x.lo, x.hi)))


@interval_rule("index_put")
def _index_put(place: Place) -> Bounds:
    x, values, known = place.interval(0), place.interval(1), _places(place, 2)
    if place.attributes.get("accumulate"):
        if known is None:
            return from_growth(place)
        added = Interval(place.compute(x.lo, values.lo, *known), place.compute(x.hi, values.hi, *known))
        size = place.compute(x.magnitude, values.magnitude, *known)
        return inflate(added, _margin(size, sum(i.numel() for i in known if i is not None) + x.lo.numel()))
    if known is None:
        return hull(x, place.whole(1))
    written = Interval(place.compute(x.lo, values.lo, *known), place.compute(x.hi, values.hi, *known))
    ones = torch.ones(values.shape, dtype=torch.float64)
    visits = torch.ops.aten.index_put(torch.zeros_like(x.lo), known, ones, True)
    return _several(place, written, visits, 1)


def _several(place: Place, written: Interval, visits: Tensor, index: int) -> Interval:
    """An entry that is written more than once may keep any of the values."""
    if not bool((visits > 1).any()):
        return written
    wide = hull(written, place.whole(index))
    return Interval(
        torch.where(visits > 1, wide.lo, written.lo), torch.where(visits > 1, wide.hi, written.hi)
    )


def _margin(size: Tensor, terms: int) -> Tensor:
    margin = size * gamma(terms + 4)
    return torch.where(torch.isfinite(margin), margin, 0.0)


@interval_rule("scatter")
def _scatter(place: Place) -> Bounds:
    x, index, reduce = place.interval(0), place.indices(1), place.attributes.get("reduce")
    source = place.operand(2, "src")
    number = not place.present(2)
    if reduce in ("multiply", "prod"):
        return from_growth(place)
    if index is None:
        if reduce in ("add", "sum", "mean"):
            return from_growth(place) if reduce != "mean" else hull(x, place.whole(2))
        return hull(x, point(source.lo) if number else place.whole(2))

    def written(end: Tensor, src: Tensor) -> Tensor:
        result: Tensor = place.compute(end, index, None if number else src)
        return result

    result = Interval(written(x.lo, source.lo), written(x.hi, source.hi))
    if reduce in ("add", "sum", "mean"):
        # A number that is added comes from the attributes, signed; its size is bounded by hand.
        size = (
            written(x.magnitude, source.magnitude)
            if not number
            else x.magnitude + index.numel() * source.magnitude
        )
        return inflate(result, 2.0 * _margin(size, index.numel()))
    if reduce is None and not number:
        visits = torch.scatter_add(
            torch.zeros_like(x.lo),
            place.attributes["dim"],
            index,
            torch.ones(index.shape, dtype=torch.float64),
        )
        return _several(place, result, visits, 2)
    return result
