"""One pass over a program: every node's interval from its operands'."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from farfield.certify.intervals._fallback import from_growth
from farfield.certify.intervals._infinite import carried, written
from farfield.certify.intervals._interval import Interval, all_finite, meet, point, spread, tidy, unbounded
from farfield.certify.intervals._registry import INTERVAL_RULES, Bounds, Place, UnboundableError
from farfield.certify.intervals.rules.shape import moved
from farfield.errors import InvalidValueError, UnknownNameError
from farfield.graph import InputSpec, Node, Program, SymbolicSize, describe, last_uses
from farfield.growth._registry import is_complex

__all__ = ["propagate"]

_WITHIN = frozenset(
    [
        "cast",
        "clamp",
        "maximum",
        "minimum",
        "amax",
        "amin",
        "relu",
        "sign",
        "floor",
        "ceil",
        "round",
        "trunc",
        "remainder",
        "fmod",
        "argmax",
        "argmin",
        "randint",
    ]
)
"""Operators whose whole numbers never leave their type, or that see to it themselves."""


def propagate(
    program: Program,
    inputs: Mapping[str, Interval] | None = None,
    given: Mapping[str, Interval] | None = None,
    *,
    keep: Iterable[str] | None = None,
) -> dict[str, Bounds]:
    """Where every entry of every node lies, for every input of the boxes given.

    Sound in real arithmetic: for all inputs inside their boxes, lo ≤ value ≤ hi, rounding of the bounds included
    (outwards, see ``_interval``). Entries are bounded one by one, so what one knows of another is lost. Cost: about
    two evaluations of the program in float64.

    Parameters
    ----------
    program
        From ``capture(model, example, dynamic_batch=False)``: every size a number.
    inputs
        Input name → box of its shape. An input that is not named is free: any real number, any integer (an embedding
        then takes the hull of its rows), [0, 1] for a boolean.
    given
        Node name → what is known of it from elsewhere. It is intersected with what the node's rule says, and stands
        alone where that says nothing.
    keep
        Names of the nodes wanted; the others are freed as soon as they are used up. All by default.

    Returns
    -------
    dict
        Node name → :class:`Interval`, a tuple of them for a node that returns several tensors.

    Raises
    ------
    UnboundableError
        If some node's value may be undefined somewhere in the boxes, or its operator has no rule at all.

    Examples
    --------
    >>> from torch import nn
    >>> from farfield.graph import capture
    >>> program = capture(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)), torch.zeros(2, 4), dynamic_batch=False)
    >>> bounds = propagate(program)["output"]
    >>> bool((bounds.hi <= 7**0.5 + 1e-9).all())
    True
    """
    boxes, known = dict(inputs or {}), dict(given or {})
    _check(program, boxes, known)
    specs = {spec.name: spec for spec in program.inputs}
    wanted = None if keep is None else frozenset(keep)
    last_use = {} if wanted is None else last_uses(program.nodes)
    table: dict[str, Bounds] = {}
    infinite: dict[str, Tensor] = {}
    masked: set[str] = set()
    with torch.no_grad():
        for position, node in enumerate(program.nodes):
            if node.role == "constant":
                table[node.name] = _constant(node, program.constants[node.name])
                flags = written(program.constants[node.name])
            elif node.role == "input":
                table[node.name] = tidy(_input(specs[node.name], boxes.get(node.name)))
                flags = None
            else:
                table[node.name], flags = _operation(
                    program, node, table, infinite, frozenset(masked), known.get(node.name)
                )
                if any(name in infinite for name in node.operands):
                    masked.add(node.name)
            if flags is not None:
                infinite[node.name] = flags
            if node.name in known and node.role != "operation":
                table[node.name] = _narrowed(node, table[node.name], known[node.name])
            if wanted is not None:
                for name in (*node.operands, node.name):
                    if last_use[name] <= position and name not in wanted:
                        table.pop(name, None)
                        infinite.pop(name, None)
    return table


def _operation(
    program: Program,
    node: Node,
    table: Mapping[str, Bounds],
    infinite: Mapping[str, Tensor],
    masked: frozenset[str],
    known: Interval | None,
) -> tuple[Bounds, Tensor | None]:
    place = Place(
        node,
        tuple(None if name is None else table[name] for name in node.inputs),
        tuple(None if name is None else program.constants.get(name) for name in node.inputs),
        tuple(None if name is None else program.node(name) for name in node.inputs),
        program.node,
        tuple(None if name is None else infinite.get(name) for name in node.inputs),
        masked,
    )
    try:
        flags = carried(place)
        claim = _apply(place, flags)
    except UnboundableError:
        if known is None:
            raise
        return tidy(known), None
    return (claim if known is None else _narrowed(node, claim, known)), flags


def _apply(place: Place, flags: Tensor | None) -> Bounds:
    facts, node = describe(place.node), place.node
    rule = INTERVAL_RULES.find(node)
    given = {i for i, name in enumerate(node.inputs) if name is not None}
    chosen = {i for group in facts.linear for i in group} & given
    if rule is None and facts.moves and chosen == given:
        rule = moved
    parts = [place.producers[i] for i in chosen]
    if any(map(is_complex, (node, *place.producers))):
        # What holds entry by entry holds of both parts of a complex number if entries are only chosen, and none of
        # them is real: its imaginary part, 0, would be left out.
        alike = all(p is not None and (p.dtype is None or p.dtype.is_complex) for p in parts)
        whole = facts.moves and not facts.offsets and alike
        rule = rule if whole else None
    if rule is None or _cut_to_integers(place):
        rule = from_growth
    claim = rule(place)
    if isinstance(claim, tuple):
        return tuple(_checked(place.node, part, None) for part in claim)
    made = _checked(place.node, claim, place.shape if place.node.dtype is not None else None, flags)
    return made if facts.moves or node.op in _WITHIN else _wrapped(node, made)


def _wrapped(node: Node, claim: Interval) -> Interval:
    """Whole numbers that leave their type come out as any of it; int64 without an end stays without both."""
    dtype = node.dtype
    if dtype is None or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return claim
    limits = torch.iinfo(dtype)
    lo, hi = torch.ceil(claim.lo), torch.floor(claim.hi)
    out = (lo < float(limits.min)) | (hi > float(limits.max)) | (hi >= 2.0**63)
    if not bool(out.any()):
        return claim
    least, most = (torch.full_like(lo, float(end)) for end in (limits.min, limits.max))
    if dtype == torch.int64:
        open_ = torch.isinf(lo) | torch.isinf(hi)
        least, most = torch.where(open_, -math.inf, least), torch.where(open_, math.inf, most)
    return Interval(torch.where(out, least, lo), torch.where(out, most, hi))


def _cut_to_integers(place: Place) -> bool:
    """Floating operands end in whole numbers on the way (``sum(dtype=int)``, a copy into integers)."""
    node = place.node
    if node.dtype is None or node.dtype.is_floating_point or node.dtype.is_complex or node.op == "cast":
        return False
    floating = any(
        p is not None and p.dtype is not None and p.dtype.is_floating_point for p in place.producers
    )
    by_nature = "dtype" not in node.attributes and not describe(replace(node, dtype=torch.float64)).linear
    return floating and not by_nature


def _checked(
    node: Node, claim: Interval, shape: tuple[int, ...] | None, infinite: Tensor | None = None
) -> Interval:
    """A rule that fails must not turn into a bound."""
    if shape is not None and tuple(claim.shape) != shape:
        claim = claim.expand(shape)
    if bool(torch.isnan(claim.lo).any()) or bool(torch.isnan(claim.hi).any()):
        raise UnboundableError(node, "its interval rule returned NaN as an end")
    claim = tidy(claim, infinite)
    if claim.lo is not claim.hi and bool((claim.lo > claim.hi).any()):
        raise UnboundableError(
            node, "its interval rule returned an empty interval, so some claim before it is wrong"
        )
    return claim


def _narrowed(node: Node, claim: Bounds, known: Interval) -> Interval:
    if isinstance(claim, tuple):
        raise InvalidValueError(
            f"`given` speaks of one tensor, and {node.name!r} returns several: name one of its getitem nodes."
        )
    return _checked(node, meet(claim, tidy(known)), tuple(claim.shape))


def _constant(node: Node, tensor: Tensor) -> Interval:
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.detach().resolve_conj()).to(torch.float64)
        claim = Interval(parts.amin(-1), parts.amax(-1))
    else:
        claim = point(tensor)
    if not all_finite(claim.lo) and bool(torch.isnan(claim.lo).any()):
        raise UnboundableError(node, "this constant of the model holds NaN")
    return claim


def _input(spec: InputSpec, box: Interval | None) -> Interval:
    if box is not None:
        return box
    shape = tuple(int(size) for size in spec.shape)
    return spread(0.0, 1.0, shape) if spec.kind == "boolean" else unbounded(shape)


def _check(program: Program, boxes: Mapping[str, Interval], known: Mapping[str, Interval]) -> None:
    for node in program.nodes:
        if any(isinstance(size, str) for size in node.shape) or _symbolic(node.attributes):
            raise InvalidValueError(
                f"Intervals need every size as a number, but {node.name!r} has shape {list(node.shape)} at "
                f"{node.place}. Capture with dynamic_batch=False; a size that only running can tell (nonzero, "
                "masked_select) has no interval."
            )
    specs = {spec.name: spec for spec in program.inputs}
    for name, box in boxes.items():
        if name not in specs:
            raise UnknownNameError("input", name, specs)
        if tuple(box.shape) != tuple(specs[name].shape):
            raise InvalidValueError(
                f"Input {name!r} has shape {list(specs[name].shape)} and its box {list(box.shape)}. Capture with an "
                "example of the shape you want bounds for."
            )
        if bool((box.lo > box.hi).any()) or bool(
            torch.isnan(box.lo + box.hi).any() & ~torch.isinf(box.lo).any()
        ):
            raise InvalidValueError(
                f"The box of input {name!r} is empty or NaN somewhere: lo ≤ hi must hold everywhere."
            )
    for name in known:
        program.node(name)


def _symbolic(value: Any) -> bool:
    """A dynamic size somewhere among the attributes; texts that are no sizes stay texts."""
    if isinstance(value, SymbolicSize):
        return True
    if isinstance(value, Mapping):
        return any(_symbolic(v) for v in value.values())
    return isinstance(value, tuple | list) and any(_symbolic(v) for v in value)
