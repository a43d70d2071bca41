"""Choice by a condition, and the conditions themselves."""

from __future__ import annotations

from dataclasses import replace

import torch

from farfield.growth._extent import Extent, decided, inherit, join, truth
from farfield.growth._rate import BOUNDED
from farfield.growth._registry import GROWTH_RULES, Site, growth_rule

__all__: list[str] = []


@growth_rule("where")
def _where(site: Site) -> Extent:
    """One of the two, or the one always taken; a branch whose size the condition limits is cut at that number."""
    yes, no = site.operand(1, "input"), site.operand(2, "other")
    if (answer := truth(site.extent(0))) is not None:
        return inherit(yes if answer else no, site.extent(0))
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


@growth_rule("isnan", "isinf")
def _not_finite(site: Site) -> Extent:
    """Real arithmetic knows numbers alone: where nothing is in doubt there is no pole, no NaN and no infinity."""
    x = site.extent(0)
    return decided(False if x.known else None, x)


def _bits(site: Site) -> Extent:
    """Logic on booleans; on integers the result is at most about as long as the longer operand."""
    operands, op = site.everything(), site.node.op
    if op.startswith("bitwise") and site.node.dtype != torch.bool:
        rate = max(operand.rate for operand in operands)
        return inherit(Extent(rate, rate), *operands)
    truths = [truth(operand) for operand in operands]
    decisive = op.endswith("or")  # one operand that is true, or false, decides alone
    if op.endswith("not"):
        answer = None if truths[0] is None else not truths[0]
    elif op.endswith(("_or", "_and")) and decisive in truths:
        answer = decisive
    elif None in truths or len(truths) < 2:
        answer = None
    else:
        answer = truths[0] != truths[1] if op.endswith("xor") else not decisive
    return decided(answer, *operands)


for _kind in ("bitwise", "logical"):
    for _name in ("not", "and", "or", "xor"):
        GROWTH_RULES.register(f"{_kind}_{_name}", _bits)


@growth_rule("any", "all")
def _any_or_all(site: Site) -> Extent:
    """What holds for every entry; over no entries "any" is false and "all" true."""
    x, empty = site.extent(0), site.node.op == "all"
    return decided(empty if truth(x) is empty else None, x)


@growth_rule("nan_to_num")
def _nan_to_num(site: Site) -> Extent:
    return site.extent(0)
