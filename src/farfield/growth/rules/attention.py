"""Attention: an average of the rows of ``value``, so it goes no further than they do."""

from __future__ import annotations

from farfield.growth._extent import ZERO, Extent, averaged, inherit, join, scale, undefined
from farfield.growth._rate import SINGULAR
from farfield.growth._registry import Site, growth_rule

__all__: list[str] = []


@growth_rule("attention")
def _attention(site: Site) -> Extent:
    """softmax(…)·V lies in the convex hull of V's rows, and of 0 where rows can be masked, whatever Q and K do."""
    query, key, value, mask = (site.optional(i) for i in range(4))
    if query is None or key is None or value is None:
        return undefined(site.name, "attention without a query, a key or a value")
    if query.rate == SINGULAR or key.rate == SINGULAR or value.rate == SINGULAR:
        return undefined(site.name, "attention over values that may be infinite", query, key, value)
    if mask is not None and mask.upper == SINGULAR:
        return undefined(site.name, "an attention mask that may be +∞", mask)
    hull = value if mask is None else join(value, ZERO)
    result = inherit(averaged(hull), query, key, mask)
    dropped = float(site.attributes.get("dropout_p") or 0.0)
    if 0.0 < dropped < 1.0:
        return join(ZERO, scale(result, 1.0 / (1.0 - dropped)))
    return result
