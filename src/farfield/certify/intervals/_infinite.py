"""Values that can truly be infinite: attention masks of −∞ and what is made from them.

An interval's infinite end only says that nothing is known there. A mask holds −∞ itself, and −∞ · 0 or −∞ + ∞ is no
number. So the entries that can be infinite are followed apart, as boolean tensors, through the operators that carry
them along; a softmax, an exponential or a clamp ends them; anything else refuses.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.certify.intervals._interval import all_finite
from farfield.certify.intervals._registry import Place

__all__ = ["carried", "written"]

CHOICES = frozenset(
    {
        "reshape",
        "permute",
        "expand",
        "repeat",
        "squeeze",
        "unsqueeze",
        "flip",
        "roll",
        "identity",
        "slice",
        "select",
    }
    | {"cat", "stack", "tril", "triu", "copy", "dropout", "pad", "slice_scatter", "select_scatter"}
)
"""Operators that only move entries: the flags move in the same way."""
ENDS = frozenset(
    {
        "softmax",
        "logsumexp",
        "exp",
        "sigmoid",
        "tanh",
        "erf",
        "relu",
        "clamp",
        "hardtanh",
        "attention",
        "nan_to_num",
    }
    | {"gt", "lt", "ge", "le", "eq", "ne", "isinf", "isnan", "argmax", "argsort", "logical_not"}
)
"""Operators that have a finite value at the infinities their rule admits."""


def written(tensor: Tensor) -> Tensor | None:
    """Which entries of a constant are infinite."""
    if not tensor.is_floating_point() or all_finite(tensor.detach()):
        return None
    flags = torch.isinf(tensor)
    return flags if bool(flags.any()) else None


def carried(place: Place) -> Tensor | None:
    """Which entries of a node's value can be truly infinite; refuses where that leaves it undefined."""
    op = place.node.op
    if op in ("where", "masked_fill"):
        return _chosen(place)
    if op == "full" and not place.present(0):
        value = place.attributes["fill_value"]
        endless = isinstance(value, float) and math.isinf(value)
        return torch.ones(place.shape, dtype=torch.bool) if endless else None
    if not any(flags is not None for flags in place.infinite):
        return None
    if op in CHOICES:
        return _moved(place)
    if op in ENDS:
        _check_end(place)
        return None
    if op in ("add", "sub", "maximum", "minimum"):
        return _combined(place)
    if op == "cast" and place.attributes["dtype"].is_floating_point:
        return place.infinite[0]
    if op in ("mul", "div") and place.infinite[-1] is None:
        return _scaled(place)
    raise place.refuse("an argument can be infinite (a mask of −∞?), and this operator has no value there")


def _flags(place: Place, index: int) -> Tensor | None:
    return place.infinite[index] if index < len(place.infinite) else None


def _moved(place: Place) -> Tensor | None:
    ends: list[Tensor | None] = []
    for index in range(len(place.operands)):
        flags = place.infinite[index]
        if not place.present(index):
            ends.append(None)
        elif flags is None:
            ends.append(torch.zeros_like(place.interval(index).lo))
        else:
            ends.append(flags.to(torch.float64))
    moved: Tensor = place.compute(*ends)
    found = moved == 1.0
    return found if bool(found.any()) else None


def _chosen(place: Place) -> Tensor | None:
    """Of the branch that is taken, or of either where the condition is open."""
    branches = ((1, "input"), (2, "other")) if place.node.op == "where" else ((2, "value"), (0, "input"))
    condition = place.interval(0 if place.node.op == "where" else 1)
    possible = (condition.hi > 0, condition.lo <= 0)
    found: Tensor | None = None
    for (index, attribute), can in zip(branches, possible, strict=True):
        if place.present(index):
            flags = _flags(place, index)
        else:
            value = place.attributes[attribute]
            flags = torch.tensor(isinstance(value, float) and math.isinf(value))
        if flags is not None and bool(flags.any()):
            part = (flags & can).expand(place.shape)
            found = part if found is None else found | part
    return found if found is not None and bool(found.any()) else None


def _combined(place: Place) -> Tensor:
    first, second = _flags(place, 0), _flags(place, 1)
    if first is not None and second is not None and place.node.op in ("add", "sub"):
        a, b = place.interval(0), place.interval(1)
        both = first & second
        down = (a.hi < math.inf) & ((b.hi < math.inf) if place.node.op == "add" else (b.lo > -math.inf))
        rise = (a.lo > -math.inf) & ((b.lo > -math.inf) if place.node.op == "add" else (b.hi < math.inf))
        if bool((both & ~(down | rise)).any()):
            raise place.refuse("both terms can be infinite with opposite signs: ∞ − ∞ is undefined")
    found = torch.zeros(place.shape, dtype=torch.bool)
    for flags in (first, second):
        if flags is not None:
            found = found | flags
    return found


def _scaled(place: Place) -> Tensor:
    other = place.operand(1, "other")
    flags = place.infinite[0]
    assert flags is not None
    if bool((flags & (other.lo <= 0) & (other.hi >= 0)).any()):
        raise place.refuse("an infinite factor can meet a zero: 0·∞ is undefined")
    return (flags | torch.zeros(place.shape, dtype=torch.bool)).contiguous()


def _check_end(place: Place) -> None:
    """The operator has a finite value at the infinities its argument can hold."""
    op, flags = place.node.op, place.infinite[0]
    if op == "attention":
        mask = place.infinite[3] if len(place.infinite) > 3 else None
        if any(given is not None for given in place.infinite[:3]):
            raise place.refuse("a query, a key or a value can be infinite")
        if mask is not None and bool((mask & (place.interval(3).hi == math.inf)).any()):
            raise place.refuse("its mask can be +∞")
        return
    if flags is None:
        return
    box = place.interval(0)
    rises, falls = bool((flags & (box.hi == math.inf)).any()), bool((flags & (box.lo == -math.inf)).any())
    if op in ("softmax", "logsumexp", "exp", "relu") and rises:
        raise place.refuse("an argument can be +∞")
    if op in ("softmax", "logsumexp"):
        dims = place.attributes["dim"]
        if bool(_all(flags, dims if isinstance(dims, tuple) else (dims,)).any()):
            raise place.refuse("every entry of a row can be masked (−∞), where it is undefined")
    if op == "clamp":
        for index, attribute, endless in ((1, "min", falls), (2, "max", rises)):
            if endless and not place.present(index) and place.attributes.get(attribute) is None:
                raise place.refuse("an argument can be infinite on the side that is not clamped")


def _all(flags: Tensor, dims: tuple[int, ...]) -> Tensor:
    for dim in sorted(dims, reverse=True):
        flags = flags.all(dim) if flags.ndim else flags
    return flags
