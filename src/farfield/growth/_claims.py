"""What is known of one node: its operator's rule, or the rules of what it is composed of, or what its facts say."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from farfield.graph import Facts, Node, compose, compute_node, describe, operator
from farfield.graph.operators._facts import Domain
from farfield.growth._extent import ZERO, Extent, as_type, inherit, interval, join, undefined
from farfield.growth._rate import BOUNDED, CONSTANT, SINGULAR, Rate
from farfield.growth._registry import GROWTH_RULES, Claim, Site, is_complex, number

__all__ = ["claim_of"]

INF = math.inf


def claim_of(site: Site) -> Claim:
    """What the operator does, with what its result type adds: integers are cut and wrap around.

    The claim about a complex tensor is one about both its parts, so a real operand that becomes complex is joined
    with its imaginary part, 0. A rule that fails must not turn into a verdict: the node is unknown and says so.
    """
    node = site.node
    flat = [e for o in site.operands if o is not None for e in (o if isinstance(o, tuple) else (o,))]
    if node.op != "unknown" and any(is_complex(p) for p in site.producers) and not describe(node).complex:
        return undefined(node.name, f"the growth rule of {node.op!r} does not cover complex numbers", *flat)
    rule = GROWTH_RULES.find(node)
    taken = _promoted(site)
    try:
        claim = None if rule is None else rule(taken)
        claim = _composed(taken) if claim is None else claim
        claim = _described(taken, describe(node)) if claim is None else claim
    except Exception as error:
        return undefined(node.name, f"the growth rule of {node.op!r} failed: {error}", *flat)
    if claim is None:
        what = node.target if node.op == "unknown" else node.op
        text = f"no growth rule for operator {what!r}: register_growth_rule({what!r}, rule) adds one"
        return undefined(node.name, text, *flat)
    if isinstance(claim, tuple):
        return claim
    return as_type(claim, node.dtype, whole=all(_is_whole(p) for p in site.producers))


def _promoted(site: Site) -> Site:
    """The site with its operands as the operator takes them: complex beside complex, cut where the type says so."""
    wanted, named = site.node.dtype, site.attributes.get("dtype")
    operands = list(site.operands)
    for index, (operand, producer) in enumerate(zip(site.operands, site.producers, strict=True)):
        if operand is None or isinstance(operand, tuple) or producer is None:
            continue
        if is_complex(site.node) and not is_complex(producer):
            operands[index] = join(operand, ZERO)
        elif isinstance(named, torch.dtype) and named == wanted and site.node.op != "cast":
            operands[index] = as_type(operand, wanted, whole=_is_whole(producer))
    return replace(site, operands=tuple(operands))


def _is_whole(node: Node | None) -> bool:
    """Every entry is an integer because of its type (or there is no such operand)."""
    return node is None or (
        node.dtype is not None and not node.dtype.is_floating_point and not node.dtype.is_complex
    )


def _composed(site: Site) -> Claim | None:
    """The claims of the small nodes that an operator is composed of, one after another."""
    nodes = compose(site.node)
    names = site.node.inputs
    claims: dict[str, Claim] = {
        n: o for n, o in zip(names, site.operands, strict=True) if n and o is not None
    }
    tensors = {n: t for n, t in zip(names, site.tensors, strict=True) if n}
    made = {n: p for n, p in zip(names, site.producers, strict=True) if n and p is not None}

    def lookup(name: str) -> Node:
        return made[name] if name in made else site.lookup(name)

    for node in nodes:
        inputs = node.inputs
        claims[node.name] = claim_of(
            Site(
                node,
                tuple(None if n is None else claims[n] for n in inputs),
                tuple(None if n is None else tensors.get(n) for n in inputs),
                tuple(None if n is None else made[n] for n in inputs),
                lookup,
            )
        )
        made[node.name] = node
    return claims[nodes[-1].name] if nodes else None


def _described(site: Site, facts: Facts) -> Extent | None:
    """What the facts of an operator say without a rule: it moves entries, is linear, monotone, or has a range."""
    everything = site.everything()
    lo, hi = facts.range
    if facts.moves:
        return _moved(site, facts)
    if facts.domain is not None:
        return _monotone(site, facts, facts.domain)
    if any(value.rate == SINGULAR or value.doubts for value in everything):
        return undefined(
            site.name, f"{site.node.op!r} of values that may be infinite or undefined", *everything
        )
    if math.isfinite(lo) and math.isfinite(hi):
        return interval(lo, hi, *everything)
    moving = [i for i in range(len(site.operands)) if site.present(i) and not site.extent(i).constant]
    least = BOUNDED if moving else CONSTANT
    if all(any(i in group for group in facts.linear) for i in moving) and facts.linear:
        rate = least
        joint = facts.linear_group(moving)
        for i in moving:
            rate = max(rate, site.extent(i).rate) if joint else rate.times(site.extent(i).rate)
        return inherit(Extent(rate, rate, lo, hi), *everything)
    if facts.entrywise and len(site.operands) == 1 and facts.monotone[:1] != (0,) and facts.monotone:
        return _monotone(site, facts, Domain())
    return None


def _moved(site: Site, facts: Facts) -> Extent:
    """One of the operands' entries (or 0, where the operator fills); places that move make a fixed table move."""
    arguments = operator(site.node.op).arguments
    group = facts.linear[0]
    values = [ZERO] if facts.fills else []
    for position in group:
        if site.present(position):
            values.append(site.extent(position))
        elif position < len(arguments) and site.attributes.get(arguments[position]) is not None:
            values.append(number(site.attributes[arguments[position]]))
    places = [site.extent(i) for i in range(len(site.operands)) if i not in group and site.present(i)]
    value = join(values[0], *values[1:])
    if value.constant and value.lo != value.hi and not all(place.constant for place in places):
        value = replace(value, lower=max(value.lower, BOUNDED), upper=max(value.upper, BOUNDED))
    return inherit(value, *places)


def _monotone(site: Site, facts: Facts, domain: Domain) -> Extent:
    """A monotone function of each entry: its values at the ends, or its range where there is no end."""
    x, sign, (lo, hi) = site.extent(0), facts.monotone[0], facts.range
    poles = (domain.low, domain.high) if domain.open else ()
    if x.lo < domain.low or x.hi > domain.high or any(math.isfinite(p) and p in (x.lo, x.hi) for p in poles):
        text = f"{site.node.op!r} of a number only known to lie in [{x.lo:.4g}, {x.hi:.4g}]"
        return undefined(site.name, text, x)
    sides = [(x.lo, domain.low, x.lower), (x.hi, domain.high, x.upper)]
    rates: list[Rate] = []
    ends: list[float] = []
    for end, limit, rate in sides if sign > 0 else reversed(sides):
        grown = rate.exponential() if domain.growth == "exponential" else rate.logarithm()
        rates.append(max(BOUNDED, grown if math.isinf(limit) else BOUNDED) if not x.constant else CONSTANT)
        given = torch.tensor([end], dtype=torch.float64)
        ends.append(
            float(compute_node(site.node, [given], {}, torch.float64)) if math.isfinite(end) else math.nan
        )
    low, high = ends
    low = lo if math.isnan(low) else max(lo, low - 1e-12 * abs(low))
    high = hi if math.isnan(high) else min(hi, high + 1e-12 * abs(high))
    return inherit(Extent(rates[0], rates[1], low, high), x)
