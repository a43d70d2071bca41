"""Choice by a condition, and the conditions themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from farfield.graph import Node
from farfield.growth._extent import Extent, decided, inherit, join, truth
from farfield.growth._rate import BOUNDED
from farfield.growth._registry import Site, growth_rule

__all__ = ["branch_limits"]


@growth_rule("where")
def _where(site: Site) -> Extent:
    """One of the two, or the one always taken; a branch whose size the condition limits is cut at that number."""
    yes, no = site.operand(1, "input"), site.operand(2, "other")
    if (answer := truth(site.extent(0))) is not None:
        return inherit(yes if answer else no, site.extent(0))
    limits = branch_limits(site.node, site.producers[0], site.lookup)
    yes, no = (_cut(v, *ends) for v, ends in zip((yes, no), limits, strict=True))
    result = inherit(join(yes, no), site.extent(0))
    if result.constant and not site.extent(0).constant and result.lo != result.hi:
        result = replace(result, lower=max(result.lower, BOUNDED), upper=max(result.upper, BOUNDED))
    return result


def branch_limits(
    node: Node, condition: Node | None, lookup: Callable[[str], Node]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Between which numbers either branch of a ``where`` lies if its condition compares it, or its size, with one."""
    free = (-math.inf, math.inf)
    if condition is None or condition.op not in ("gt", "ge", "lt", "le"):
        return free, free
    limit, subject = condition.attributes.get("other"), condition.inputs[0]
    if not isinstance(limit, int | float) or subject is None or condition.inputs[1] is not None:
        return free, free
    rising, compared = condition.op in ("gt", "ge"), lookup(subject)

    def of(branch: str | None, above: bool) -> tuple[float, float]:
        if branch == subject:
            return (float(limit), math.inf) if above else (-math.inf, float(limit))
        size_of_it = branch is not None and compared.op == "abs" and compared.inputs[0] == branch
        return (-float(limit), float(limit)) if size_of_it and not above and limit >= 0.0 else free

    return of(node.inputs[1], rising), of(node.inputs[2], not rising)


def _cut(value: Extent, lo: float, hi: float) -> Extent:
    return replace(value, lo=min(max(value.lo, lo), hi), hi=max(min(value.hi, hi), lo))


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


@growth_rule(*(f"{kind}_{name}" for kind in ("bitwise", "logical") for name in ("not", "and", "or", "xor")))
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


@growth_rule("any", "all")
def _any_or_all(site: Site) -> Extent:
    """What holds for every entry; over no entries "any" is false and "all" true."""
    x, empty = site.extent(0), site.node.op == "all"
    return decided(empty if truth(x) is empty else None, x)


@growth_rule("nan_to_num")
def _nan_to_num(site: Site) -> Extent:
    return site.extent(0)
