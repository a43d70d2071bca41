"""Growth that cancels: hats and splines, x − floor(x), straight-through estimators.

Rates forget that two terms are made from the same tensor, so relu(x) − relu(x − 1) looks as if it grew. A *tail form*
remembers it: entry by entry,

    v = Σ_z (p_z · max(z, 0) + q_z · min(z, 0)) + a bounded remainder,

over a few earlier nodes z, with rational slopes that are exact in real arithmetic. Sums and multiples of forms are
forms; so is a scalar function with straight tails of a form in a single z. Where the slopes of z add up to 0, z no
longer matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeAlias

from farfield.gaussian import ScalarFunction
from farfield.graph import Node, describe
from farfield.growth._extent import Extent
from farfield.growth._rate import BOUNDED

__all__ = ["Slopes", "TailForm", "refined", "tail_form"]

Slopes: TypeAlias = tuple[Fraction, Fraction]
"""Slopes towards +∞ and towards −∞."""
TailForm: TypeAlias = dict[str, Slopes]
FLAT: Slopes = (Fraction(0), Fraction(0))
ITSELF: Slopes = (Fraction(1), Fraction(1))
MOST_BASES = 12


def tail_form(
    node: Node, forms: Mapping[str, TailForm], extent: Extent, lookup: Callable[[str], Node]
) -> TailForm:
    """The form of one node from those of its operands; of itself where nothing better is known.

    Parameters
    ----------
    extent
        What is known of the node: something bounded is all remainder.
    """
    if extent.bounded:
        return {}
    floating = node.dtype is not None and node.dtype.is_floating_point
    found = _form(node, forms, lookup) if node.role != "constant" and floating and node.operands else None
    return {node.name: ITSELF} if found is None or len(found) > MOST_BASES else found


def refined(value: Extent, form: TailForm, extents: Callable[[str], Extent]) -> Extent:
    """The claim about a node with what its tail form allows: a side moves only where some slope leads there."""
    lower = upper = BOUNDED
    for name, (right, left) in form.items():
        base = extents(name)
        upper = max(upper, base.upper if right > 0 else BOUNDED, base.lower if left < 0 else BOUNDED)
        lower = max(lower, base.upper if right < 0 else BOUNDED, base.lower if left > 0 else BOUNDED)
    return replace(value, lower=min(value.lower, lower), upper=min(value.upper, upper))


def _form(node: Node, forms: Mapping[str, TailForm], lookup: Callable[[str], Node]) -> TailForm | None:
    first = node.inputs[0]
    form = {} if first is None else forms[first]
    number = _exact(node.attributes.get("other"))
    if node.op in ("add", "sub"):
        factor = _exact(node.attributes.get("alpha", 1))
        if factor is None:
            return None
        other = {} if node.inputs[1] is None else forms[node.inputs[1]]
        return _sum(form, _scaled(other, factor if node.op == "add" else -factor))
    if node.op in ("identity", "cast"):
        return form
    if node.op == "neg":
        return _scaled(form, Fraction(-1))
    if node.op in ("mul", "div") and node.inputs[1] is None and number:
        if node.attributes.get("rounding_mode") is not None:
            return None
        return _scaled(form, number if node.op == "mul" else 1 / number)
    shape = describe(node).scalar
    if shape is not None:
        return _through(shape, form)
    if node.op in ("maximum", "minimum", "clamp"):
        return _extreme(node, forms)
    return _chosen(node, forms, lookup) if node.op == "where" else None


def _exact(value: Any) -> Fraction | None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return Fraction(value) if plain and abs(value) < float("inf") else None


def _scaled(form: TailForm, factor: Fraction) -> TailForm:
    return {name: (factor * right, factor * left) for name, (right, left) in form.items() if factor}


def _sum(one: TailForm, other: TailForm) -> TailForm:
    total = dict(one)
    for name, (right, left) in other.items():
        a, b = total.get(name, FLAT)
        total[name] = (a + right, b + left)
    return {name: slopes for name, slopes in total.items() if slopes != FLAT}


def _through(shape: ScalarFunction, form: TailForm) -> TailForm | None:
    """f(v) for a form in one z: each end of z leads v to one of f's tails, or leaves v bounded."""
    if len(form) != 1:
        return None if form else {}
    ((name, (right, left)),) = form.items()
    up, down = Fraction(shape.right.slope), Fraction(shape.left.slope)
    return _kept(name, (up if right > 0 else down) * right, (down if left > 0 else up) * left)


def _kept(name: str, right: Fraction, left: Fraction) -> TailForm:
    return {name: (right, left)} if (right, left) != FLAT else {}


def _single(forms: list[TailForm]) -> tuple[str, list[Slopes]] | None:
    """The one z that all these forms are in, and their slopes."""
    names = {name for form in forms for name in form}
    if len(names) != 1:
        return None
    (name,) = names
    return name, [form.get(name, FLAT) for form in forms]


def _extreme(node: Node, forms: Mapping[str, TailForm]) -> TailForm | None:
    """Maxima and minima of forms in one z; clamp is both."""
    operands = [{} if name is None else forms[name] for name in node.inputs]
    shared = _single(operands)
    if shared is None:
        return None
    name, slopes = shared
    if node.op != "clamp":
        pick = max if node.op == "maximum" else min
        back = min if node.op == "maximum" else max
        return _kept(name, pick(r for r, _ in slopes), back(q for _, q in slopes))
    right, left = slopes[0]
    for index, attribute, pick, back in ((1, "min", max, min), (2, "max", min, max)):
        there = index < len(node.inputs) and node.inputs[index] is not None
        if there or node.attributes.get(attribute) is not None:
            bound = slopes[index] if there else FLAT
            right, left = pick(right, bound[0]), back(left, bound[1])
    return _kept(name, right, left)


def _chosen(node: Node, forms: Mapping[str, TailForm], lookup: Callable[[str], Node]) -> TailForm | None:
    """``where`` by a comparison of some form in z with a number: each end of z settles it."""
    condition = lookup(str(node.inputs[0]))
    if condition.op not in ("gt", "ge", "lt", "le") or condition.inputs[0] is None:
        return None
    if condition.inputs[1] is not None or _exact(condition.attributes.get("other")) is None:
        return None
    subject = forms[condition.inputs[0]]
    branches = [{} if name is None else forms[name] for name in node.inputs[1:3]]
    shared = _single([subject, *branches])
    if shared is None:
        return None
    name, (compared, yes, no) = shared
    rising = condition.op in ("gt", "ge")
    ends = []
    for end, slope in enumerate((compared[0], -compared[1])):
        if slope == 0:
            return None
        ends.append((yes if (slope > 0) is rising else no)[end])
    return _kept(name, ends[0], ends[1])
