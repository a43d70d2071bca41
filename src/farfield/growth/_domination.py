"""Quotients that stay bounded because the denominator keeps up: x/√(1 + x²), x/(1 + ‖x‖), x·exp(−x²).

Intervals and rates forget that numerator and denominator are made from the same tensor. Here both are compared with a
power of one common *base* node z:

    |a| ≤ C |z|^q        (growth_powers)
    b ≥ c |z|^p, c > 0   (size_powers)

so that |a|/b is bounded if q = p, or if q < p and b keeps away from 0. Reductions over an axis that is kept
bound every entry they cover: ‖z‖ ≥ |z_i|, mean(z²) ≥ z_i²/n, var(z) ≥ (z_i − mean z)²/n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from farfield.graph import Node, describe

__all__ = ["bounded_product", "bounded_quotient", "decay_powers", "growth_powers", "size_powers"]

Lookup: TypeAlias = Callable[[str], Node]
Powers: TypeAlias = dict[str, float]
DEPTH = 8


def _number(node: Node, name: str = "other") -> float | None:
    value: Any = node.attributes.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _floating(node: Node) -> bool:
    return node.dtype is not None and node.dtype.is_floating_point


def _factor(node: Node) -> float | None:
    """c with node = c · its first operand, entry by entry; ``None`` where it is not a multiple of it."""
    if not _floating(node) or node.inputs[0] is None:
        return None
    if node.op in ("identity", "cast"):
        return 1.0
    if node.op == "neg":
        return -1.0
    number = _number(node)
    if node.op not in ("mul", "div") or node.inputs[1] is not None or not number or not describe(node).linear:
        return None
    return number if node.op == "mul" else 1.0 / number


def _is_size(node: Node) -> bool:
    """Its entries are never negative."""
    return describe(node).range[0] >= 0.0


def _is_dominated(node: Node) -> bool:
    """|f(v)| ≤ C·|v|: f(0) = 0, without a jump there, and with straight tails."""
    f = describe(node).scalar
    if f is None or not _floating(node) or any(jump[0] == 0.0 for jump in f.jumps):
        return False
    straight = all(tail.slope == 0.0 or tail.remainder != "bounded" for tail in (f.left, f.right))
    return straight and float(f.function(torch.zeros((), dtype=torch.float64))) == 0.0


def growth_powers(name: str, lookup: Lookup, depth: int = DEPTH) -> Powers:
    """Bases z and exponents q with |node| ≤ C·|z|^q entry by entry: the node itself with q = 1, and further back."""
    powers: Powers = {name: 1.0}
    if depth == 0:
        return powers
    node = lookup(name)
    first = node.inputs[0] if node.inputs else None
    if first is None:
        return powers
    if _factor(node) is not None or _is_dominated(node):
        powers |= growth_powers(first, lookup, depth - 1)
    elif node.op == "square":
        powers |= {base: 2 * q for base, q in growth_powers(first, lookup, depth - 1).items()}
    elif node.op == "pow" and node.inputs[1] is None and (_number(node, "exponent") or 0.0) > 0.0:
        exponent = _number(node, "exponent") or 0.0
        powers |= {base: exponent * q for base, q in growth_powers(first, lookup, depth - 1).items()}
    elif node.op == "mul" and node.inputs[1] is not None and describe(node).linear:
        second = node.inputs[1]
        if lookup(second).role == "constant":
            powers |= growth_powers(first, lookup, depth - 1)
        else:
            left = growth_powers(first, lookup, depth - 1)
            right = growth_powers(second, lookup, depth - 1)
            powers |= {base: left[base] + right[base] for base in left.keys() & right.keys()}
    return powers


def size_powers(name: str, lookup: Lookup, depth: int = DEPTH) -> Powers:
    """Bases z and exponents p with node ≥ c·|z|^p ≥ 0, c > 0, at every entry that the node is broadcast to."""
    node = lookup(name)
    first = node.inputs[0] if node.inputs else None
    if depth == 0 or first is None or not _floating(node):
        return {}
    found = _sizes_behind(node, first, lookup, depth - 1)
    return {**found, name: max(1.0, found.get(name, 1.0))} if _is_size(node) else found


def _sizes_behind(node: Node, first: str, lookup: Lookup, below: int) -> Powers:
    """:func:`size_powers` in terms of what the node is made from."""
    if node.op == "abs":
        return _bases(first, lookup, below)
    if node.op == "square":
        behind = _strongest(size_powers(first, lookup, below), _bases(first, lookup, below))
        return {base: 2 * q for base, q in behind.items()}
    if node.op in ("sqrt", "pow"):
        exponent = 0.5 if node.op == "sqrt" else _number(node, "exponent")
        if exponent is None or exponent <= 0.0 or (node.op == "pow" and node.inputs[1] is not None):
            return {}
        behind = size_powers(first, lookup, below)
        if node.op == "pow" and exponent % 2 == 0:
            behind = _strongest(behind, _bases(first, lookup, below))
        return {base: exponent * p for base, p in behind.items()}
    if node.op in ("sum", "mean", "amax") and node.attributes.get("keepdim"):
        return size_powers(first, lookup, below)
    if node.op == "norm" and node.attributes.get("keepdim") and float(node.attributes.get("ord", 2)) >= 1.0:
        return _bases(first, lookup, below)
    if node.op in ("var", "std") and node.attributes.get("keepdim"):
        dims = node.attributes.get("dim")
        return {f"centered {first} {dims}": 2.0 if node.op == "var" else 1.0}
    if node.op in ("expand", "identity", "cast") and _floating(node):
        return size_powers(first, lookup, below)
    if node.op == "squeeze":
        return _windowed(node, lookup, below)
    return _combined_size(node, first, lookup, below)


def _windowed(node: Node, lookup: Lookup, depth: int) -> Powers:
    """Sizes averaged over a window around each entry, as local response normalization does it.

    An axis of length 1 is put in, zeros are padded, windows of stride 1 are averaged, the axis is taken out:
    where the shape is the same as before, every window holds its own entry, and an average of sizes is at least
    1/k of any of them.
    """
    pool = lookup(str(node.inputs[0]))
    pad = lookup(str(pool.inputs[0])) if pool.op == "avg_pool" else pool
    opened = lookup(str(pad.inputs[0])) if pad.op == "pad" else pad
    if (pool.op, pad.op) != ("avg_pool", "pad") or opened.op not in ("reshape", "unsqueeze"):
        return {}
    source = lookup(str(opened.inputs[0]))
    a = pool.attributes
    zeros = pad.attributes.get("mode") == "constant" and not pad.attributes.get("value")
    straight = set(a["stride"]) == {1} and set(a["padding"]) == {0} and not a.get("divisor_override")
    amounts = list(pad.attributes["pad"])
    before = amounts[0::2][::-1]
    kernel = list(a["kernel_size"])[-len(before) :] if before else []
    inside = len(kernel) == len(before) and all(0 <= p <= k - 1 for p, k in zip(before, kernel, strict=True))
    lifted = (
        len(opened.shape) > 1
        and opened.shape[1] == 1
        and (*opened.shape[:1], *opened.shape[2:]) == source.shape
    )
    if zeros and straight and inside and lifted and node.shape == source.shape:
        return size_powers(source.name, lookup, depth)
    return {}


def _combined_size(node: Node, first: str, lookup: Lookup, depth: int) -> Powers:
    """Sums, multiples and maxima of sizes."""
    second = node.inputs[1] if len(node.inputs) > 1 else None
    number = _number(node)
    if node.op == "add" and float(node.attributes.get("alpha", 1)) > 0.0:
        if second is None:
            return size_powers(first, lookup, depth) if number is not None and number >= 0.0 else {}
        # Both terms are known to be non-negative only if both have a size.
        left, right = size_powers(first, lookup, depth), size_powers(second, lookup, depth)
        return _strongest(left, right) if left and right else {}
    if (_factor(node) or 0.0) > 0.0:
        return size_powers(first, lookup, depth)
    if node.op == "clamp" and node.inputs[2:] in ((), (None,)) and node.attributes.get("max") is None:
        return size_powers(first, lookup, depth)
    if node.op == "maximum":
        left = size_powers(first, lookup, depth)
        right = {} if second is None else size_powers(second, lookup, depth)
        return _strongest(left, right)
    return {}


def _strongest(left: Powers, right: Powers) -> Powers:
    return {
        base: max(left.get(base, -math.inf), right.get(base, -math.inf))
        for base in left.keys() | right.keys()
    }


def _bases(name: str, lookup: Lookup, depth: int) -> Powers:
    """Bases z that a node is, up to a non-zero number: |node| = c·|z|."""
    powers: Powers = {name: 1.0}
    node = lookup(name)
    first = node.inputs[0] if node.inputs else None
    if depth and first is not None:
        if _factor(node) is not None or (node.op == "abs" and _floating(node)):
            powers |= _bases(first, lookup, depth - 1)
        elif node.op == "sub" and _is_own_mean(node, lookup):
            powers[f"centered {first} {lookup(str(node.inputs[1])).attributes.get('dim')}"] = 1.0
    return powers


def _is_own_mean(node: Node, lookup: Lookup) -> bool:
    """x − mean(x, dim, keepdim=True)."""
    second = node.inputs[1] if len(node.inputs) > 1 else None
    if second is None or float(node.attributes.get("alpha", 1)) != 1.0:
        return False
    mean = lookup(second)
    return mean.op == "mean" and bool(mean.attributes.get("keepdim")) and mean.inputs[0] == node.inputs[0]


def centered_powers(name: str, lookup: Lookup) -> Powers:
    """:func:`growth_powers` together with the name under which deviations from a mean are known."""
    powers = growth_powers(name, lookup)
    for base, q in tuple(powers.items()):
        if base.startswith("centered "):
            continue
        node = lookup(base)
        if node.op == "sub" and node.inputs[0] is not None and _is_own_mean(node, lookup):
            key = f"centered {node.inputs[0]} {lookup(str(node.inputs[1])).attributes.get('dim')}"
            powers[key] = max(q, powers.get(key, q))
    return powers


def decay_powers(name: str, lookup: Lookup, depth: int = DEPTH) -> Powers:
    """Bases z and exponents p with |node| ≤ C/|z|^p: reciprocals and exponentials of sizes."""
    node = lookup(name)
    first = node.inputs[0] if node.inputs else None
    if first is None or depth == 0:
        if node.op == "div" and node.inputs[1] is not None and not node.attributes.get("rounding_mode"):
            return size_powers(node.inputs[1], lookup)
        return {}
    if node.op == "reciprocal":
        return size_powers(first, lookup)
    if node.op == "rsqrt":
        return {base: p / 2 for base, p in size_powers(first, lookup).items()}
    if node.op == "exp":
        return {base: math.inf for base, p in _negated_size(first, lookup, depth - 1).items() if p > 0.0}
    if node.op == "expand" or _factor(node) is not None:
        return decay_powers(first, lookup, depth - 1)
    return {}


def _negated_size(name: str, lookup: Lookup, depth: int) -> Powers:
    """Bases and exponents with −node ≥ c·|z|^p − C."""
    node = lookup(name)
    first = node.inputs[0] if node.inputs else None
    if first is None or depth == 0:
        return {}
    second = node.inputs[1] if len(node.inputs) > 1 else None
    number = _number(node)
    factor = _factor(node)
    if factor is not None:
        back = size_powers if factor < 0.0 else _negated_size
        return back(first, lookup, depth - 1)
    if node.op == "mul" and second is not None:
        left, right = lookup(first), lookup(second)
        if left.op == "neg" and left.inputs[0] == second:
            return {base: 2 * q for base, q in _bases(second, lookup, depth - 1).items()}
        if right.op == "neg" and right.inputs[0] == first:
            return {base: 2 * q for base, q in _bases(first, lookup, depth - 1).items()}
        return {}
    if node.op in ("add", "sub") and second is None and number is not None:
        return _negated_size(first, lookup, depth - 1)
    return {}


def _meet(numerator: Powers, denominator: Powers) -> tuple[bool, bool]:
    """(bounded whatever happens at 0, bounded if the denominator keeps away from 0) for some common base."""
    exact = any(q == denominator[base] for base, q in numerator.items() if base in denominator)
    weaker = any(q <= denominator[base] for base, q in numerator.items() if base in denominator)
    return exact, weaker


def bounded_quotient(numerator: str, denominator: str, lookup: Lookup, *, gap: bool) -> tuple[bool, bool]:
    """(a/b is bounded where it is defined, it is defined everywhere).

    Parameters
    ----------
    gap
        The denominator keeps a positive distance from 0.
    """
    exact, weaker = _meet(centered_powers(numerator, lookup), size_powers(denominator, lookup))
    return exact or (weaker and gap), gap


def bounded_product(a: str, b: str, lookup: Lookup) -> bool:
    """a·b is bounded because one factor decays at least as fast as the other grows, and is itself bounded."""
    for grows, decays in ((a, b), (b, a)):
        if _meet(centered_powers(grows, lookup), decay_powers(decays, lookup))[1]:
            return True
    return False
