"""Choice by a condition, and the conditions themselves."""

from __future__ import annotations

from dataclasses import replace

import torch

from farfield.growth._extent import Extent, inherit, interval, join
from farfield.growth._rate import BOUNDED
from farfield.growth._registry import GROWTH_RULES, Site, growth_rule

__all__: list[str] = []


@growth_rule("where")
def _where(site: Site) -> Extent:
    """One of the two; a branch whose own size the condition compares with a number is cut at that number."""
    yes, no = site.operand(1, "input"), site.operand(2, "other")
    condition = site.producers[0]
    if condition is not None and condition.op in ("gt", "ge", "lt", "le"):
        limit, subject = condition.attributes.get("other"), condition.inputs[0]
        if isinstance(limit, int | float) and subject is not None and condition.inputs[1] is None:
            rising = condition.op in ("gt", "ge")
            yes = _restricted(site, 1, yes, subject, float(limit), keep_above=rising)
            no = _restricted(site, 2, no, subject, float(limit), keep_above=not rising)
    result = inherit(join(yes, no), site.extent(0))
    if result.constant and not site.extent(0).constant and result.lo != result.hi:
        result = replace(result, lower=max(result.lower, BOUNDED), upper=max(result.upper, BOUNDED))
    return result


def _restricted(
    site: Site, index: int, value: Extent, subject: str, limit: float, *, keep_above: bool
) -> Extent:
    """A branch given that the compared node (the branch itself, or its absolute value) lies beyond the limit."""
    branch = site.node.inputs[index]
    if branch is None:
        return value
    if branch == subject:
        return _cut(value, limit, keep_above=keep_above)
    size = site.lookup(subject)
    if size.op == "abs" and size.inputs[0] == branch and not keep_above and limit >= 0.0:
        return _cut(_cut(value, limit, keep_above=False), -limit, keep_above=True)
    return value


def _cut(value: Extent, limit: float, *, keep_above: bool) -> Extent:
    if keep_above:
        return replace(value, lo=max(value.lo, float(limit)), hi=max(value.hi, float(limit)))
    return replace(value, hi=min(value.hi, float(limit)), lo=min(value.lo, float(limit)))


@growth_rule("masked_fill")
def _masked_fill(site: Site) -> Extent:
    result = inherit(join(site.extent(0), site.operand(2, "value")), site.extent(1))
    if result.constant and not site.extent(1).constant and result.lo != result.hi:
        result = replace(result, lower=max(result.lower, BOUNDED), upper=max(result.upper, BOUNDED))
    return result


def _bits(site: Site) -> Extent:
    """Logic on booleans; on integers the result is at most about as long as the longer operand."""
    if site.node.dtype == torch.bool:
        return interval(0.0, 1.0, *site.everything())
    operands = site.everything()
    rate = max(operand.rate for operand in operands)
    return inherit(Extent(rate, rate), *operands)


for _name in ("bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor"):
    GROWTH_RULES.register(_name, _bits)


@growth_rule("nan_to_num")
def _nan_to_num(site: Site) -> Extent:
    return site.extent(0)
