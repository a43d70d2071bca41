"""Plain intervals: where every entry of every node lies, as far as the rules below reach.

Rules rest on what an operator is (it moves entries, it is monotone, linear, a norm) and on the table of curves; a few
operators have a rule by name. A node that no rule covers is unknown, and the reason names its operator. Functions of
the platform (exp, log, erf, …) count as right to a relative 2⁻⁴⁶.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farfield.certify.checker._affine import AffineMap
from farfield.certify.checker._curves import curve
from farfield.certify.checker._range_rules import RULES
from farfield.certify.checker._spans import closer_norm, plus, point, times
from farfield.certify.checker._values import (
    EVALUATION,
    TINY,
    Array,
    CertificateError,
    Span,
    U,
    gamma,
    round_up,
    run,
    sizes,
)
from farfield.graph import Facts, Node, NormSpec, Program, describe

__all__ = ["Ranges"]

EXACT = frozenset(
    [
        "maximum",
        "minimum",
        "clamp",
        "amax",
        "amin",
        "max_pool",
        "adaptive_max_pool",
        "floor",
        "ceil",
        "round",
        "trunc",
        "sign",
        "bucketize",
    ]
)
"""Monotone operators that round nothing."""


class Ranges:
    """Every node's range for every input of a domain.

    Parameters
    ----------
    program
        Captured with fixed sizes.
    inputs
        Ranges of the inputs that have one; the others are unbounded.
    """

    def __init__(self, program: Program, inputs: Mapping[str, Span] | None = None) -> None:
        self.program, self.inputs = program, dict(inputs or {})
        self.found: dict[str, Any] = {}
        self.reasons: dict[str, str] = {}
        self.averaging: set[str] = set()
        """Nodes whose rows along the last axis are non-negative and sum to 1."""
        with np.errstate(all="ignore"), torch.no_grad():
            for node in program.nodes:
                self.found[node.name] = self._range(node)

    def get(self, name: str) -> Span | None:
        """The range of a node with one value, if there is one."""
        found = self.found.get(name)
        return found if isinstance(found, tuple) and isinstance(found[0], np.ndarray) else None

    def of(self, name: str) -> Span:
        """The range, flat; refused where no rule reaches."""
        found = self.get(name)
        if found is None:
            raise CertificateError(
                f"The independent checker does not support {self.reasons.get(name, name)}."
            )
        return found[0].reshape(-1), found[1].reshape(-1)

    def constant(self, name: str | None) -> Tensor | None:
        """The value of a node that is exactly known, in its own kind of number."""
        if name is None:
            return None
        if name in self.program.constants:
            value = self.program.constants[name].detach()
            return value.to(torch.float64) if value.is_floating_point() else value
        found, node = self.get(name), self.program.node(name)
        if found is None or node.dtype is None or not np.array_equal(found[0], found[1]):
            return None
        value = torch.from_numpy(found[0].copy())
        return value if node.dtype.is_floating_point else value.to(node.dtype)

    def zeros(self, name: str) -> Tensor:
        """Zeros of a node's shape."""
        return torch.zeros(sizes(self.program.node(name)), dtype=torch.float64)

    def _range(self, node: Node) -> Any:
        if node.role == "constant":
            value = self.program.constants[node.name].detach()
            if value.is_complex():
                self.reasons[node.name] = f"complex numbers ({node.name})"
                return None
            mid = value.to(torch.float64).numpy().copy()
            return mid, mid
        if node.role == "input":
            free = (np.full(sizes(node), -math.inf), np.full(sizes(node), math.inf))
            return self.inputs.get(node.name, free)
        try:
            made = RangeStep(self, node).made()
        except CertificateError as error:
            made, self.reasons[node.name] = None, str(error)
        except (RuntimeError, TypeError, ValueError, IndexError, KeyError):  # a rule that fails says nothing
            made = None
        if made is None:
            lost = next(
                (self.reasons[n] for n in node.operands if n in self.reasons and self.get(n) is None), None
            )
            source = self.program.node(node.operands[0]) if node.op == "getitem" else node
            self.reasons.setdefault(node.name, lost or f"{source.op} ({source.name}) yet")
            return None
        if not isinstance(made[0], np.ndarray):
            return made
        lo, hi = (np.broadcast_to(end, sizes(node)).astype(np.float64) for end in made)
        return self._stored(
            node, (np.where(np.isnan(lo), -math.inf, lo), np.where(np.isnan(hi), math.inf, hi))
        )

    def _stored(self, node: Node, span: Span) -> Span:
        """What the node's type makes of a range: whole numbers that leave an integer type wrap around in it."""
        dtype = node.dtype
        if dtype is None or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
            return span
        if describe(node).moves or node.op in EXACT or node.op == "cast":
            return span
        limits = torch.iinfo(dtype)
        lo, hi = np.ceil(span[0]), np.floor(span[1])
        wraps = (lo < float(limits.min)) | (hi > float(limits.max)) | (hi >= 2.0**63)
        return np.where(wraps, float(limits.min), lo), np.where(wraps, float(limits.max), hi)


class RangeStep:
    """One node with the ranges of its operands."""

    def __init__(self, ranges: Ranges, node: Node) -> None:
        self.ranges, self.node, self.attributes = ranges, node, node.attributes
        self.facts: Facts = describe(node)
        self.given: list[Any] = [None if name is None else ranges.found.get(name) for name in node.inputs]
        self.fixed = [ranges.constant(name) for name in node.inputs]

    def made(self) -> Any:
        node = self.node
        if (
            node.op == "getitem"
            and self.given
            and isinstance(self.given[0], tuple)
            and not isinstance(self.given[0][0], np.ndarray)
        ):
            return self.given[0][int(self.attributes["index"])]
        types = [node.dtype, *(self.ranges.program.node(n).dtype for n in node.operands)]
        if any(t is not None and t.is_complex for t in types):
            raise CertificateError(f"complex numbers ({node.name})")
        if (rule := RULES.get(node.op)) is not None and (made := rule(self)) is not None:
            return made
        if self.facts.norm is not None:
            return self._norm(self.facts.norm)
        if (
            (sigma := curve(node.op, self.attributes)) is not None
            and len(node.operands) == 1
            and self.given[0]
        ):
            return sigma.image(*self.given[0])
        if self.facts.moves and (made := self._moved()) is not None:
            return made
        if (made := self._monotone()) is not None:
            return made
        if self.facts.linear and (made := self._linear()) is not None:
            return made
        return (np.zeros(sizes(node)), np.ones(sizes(node))) if node.dtype == torch.bool else None

    def operand(self, place: int, key: str) -> Span | None:
        """An operand's range, or the number that stands in its place."""
        if place < len(self.given) and self.given[place] is not None:
            found: Span = self.given[place]
            return found
        number = self.attributes.get(key)
        present = place < len(self.node.inputs) and self.node.inputs[place] is not None
        return None if present or not isinstance(number, int | float) else point(float(number))

    def _picked(self, side: int) -> list[Any]:
        """The operands' ends that give the lower (0) or upper (1) end; constants as they are."""
        signs = [*self.facts.monotone, *(0 for _ in self.given)]
        return [
            fixed if fixed is not None or span is None else span[side if sign >= 0 else 1 - side]
            for span, fixed, sign in zip(self.given, self.fixed, signs, strict=False)
        ]

    def _ends(self, side: int) -> Any:
        return run(self.node, self._picked(side))

    def _moved(self) -> Any:
        """Entries that are chosen by something unknown: by a mask either one, by an index any one of them, or 0."""
        linear = {i for group in self.facts.linear for i in group}
        strangers = [
            i
            for i, name in enumerate(self.node.inputs)
            if name is not None and self.fixed[i] is None and i not in linear
        ]
        moved = [g for i, g in enumerate(self.given) if i in linear and self.node.inputs[i] is not None]
        if not strangers or any(g is None or not isinstance(g[0], np.ndarray) for g in moved):
            return None
        if self.node.op in ("where", "masked_fill"):
            place = strangers[0]
            shape = sizes(self.ranges.program.node(str(self.node.inputs[place])))
            ends: list[Span] = []
            for choice in (True, False):
                self.given[place], self.fixed[place] = None, torch.full(shape, choice)
                ends.append((self._ends(0), self._ends(1)))
            return np.minimum(ends[0][0], ends[1][0]), np.maximum(ends[0][1], ends[1][1])
        axes = 0 if self.node.op == "embedding" else None  # a row of the table, whichever
        lo, hi = (
            np.minimum.reduce([np.min(g[0], axis=axes) for g in moved]),
            np.maximum.reduce([np.max(g[1], axis=axes) for g in moved]),
        )
        if self.node.op != "embedding":
            lo, hi = np.minimum(lo, 0.0), np.maximum(hi, 0.0)
        return np.broadcast_to(lo, sizes(self.node)), np.broadcast_to(hi, sizes(self.node))

    def _monotone(self) -> Any:
        for i, name in enumerate(self.node.inputs):
            sign = self.facts.monotone[i] if i < len(self.facts.monotone) else 0
            if (
                name is not None
                and self.fixed[i] is None
                and (not sign or self.given[i] is None or not isinstance(self.given[i][0], np.ndarray))
            ):
                return None
        if not self.facts.monotone or not self.facts.deterministic:
            return None
        low, high = self._ends(0), self._ends(1)
        if isinstance(low, tuple):
            return tuple(zip(low, high, strict=True))
        if self.facts.moves or self.node.op in EXACT:
            return low, high
        low, high = low.astype(np.float64), high.astype(np.float64)
        slack = [EVALUATION * np.abs(end) + TINY for end in (low, high)]
        if self.facts.linear:
            affine = self._affine()
            if affine is None:
                return None
            terms = gamma(max([1, *(g[0].size for g in self.given if g is not None)]) + 16)
            slack = [round_up(terms * self._sized(affine, self._picked(side))) for side in (0, 1)]
        elif not self.facts.entrywise:  # logarithms of sums
            slack = [s + EVALUATION for s in slack]
        low, high = low - slack[0], high + slack[1]
        return (np.maximum(low, 0.0) if self.facts.positive else low), high

    def _sized(self, affine: AffineMap, ends: list[Any]) -> Array:
        """Σ |L||x| + |f(0)|."""
        total: Array = np.abs(np.asarray(affine.offset()))
        for i in affine.places:
            total = total + affine.absolute(i, np.abs(np.asarray(ends[i], dtype=np.float64))[None])[0]
        return total

    def _affine(self) -> AffineMap | None:
        moving = [i for i, name in enumerate(self.node.inputs) if name is not None and self.fixed[i] is None]
        group = self.facts.linear_group(moving)
        if group is None or any(self.given[i] is None for i in moving):
            return None
        zeros = [
            f if i not in group or name is None else self.ranges.zeros(name)
            for i, (name, f) in enumerate(zip(self.node.inputs, self.fixed, strict=True))
        ]
        affine = AffineMap(self.node, self.facts, group, zeros)
        return affine if affine.supported else None

    def _linear(self) -> Any:
        """Mid ± |L| rad; an entry that something unbounded enters is unbounded."""
        affine = self._affine()
        if affine is None:
            return None
        mid = affine.offset()
        rad = gamma(16) * np.abs(mid)
        for i in affine.places:
            lo, hi = self.given[i]
            open_ = ~(np.isfinite(lo) & np.isfinite(hi))
            middle = np.where(open_, 0.0, lo / 2 + hi / 2)
            half = np.where(open_, 0.0, round_up((hi - lo) / 2 * (1 + 4 * U) + U * np.abs(middle)))
            mid = mid + affine.apply(i, middle[None])[0]
            rad = rad + affine.absolute(i, round_up(half + affine.loss(i) * np.abs(middle))[None])[0]
            if open_.any():
                rad = np.where(affine.absolute(i, open_.astype(np.float64)[None])[0] > 0, math.inf, rad)
        rad = round_up(rad + gamma(len(affine.places) + 4) * np.abs(mid))
        return mid - rad, mid + rad

    def _norm(self, spec: NormSpec) -> Any:
        """The image: |y_i| ≤ √(count·(1 − 1/n)) where the norm centers, √count (1 for a p-norm) where not."""
        node = self.node
        shape = sizes(node)
        groups = spec.group_index(shape).numpy()
        width = groups.shape[1]
        count = spec.count(width)
        if count <= 0 or not spec.order >= 1 or not spec.eps >= 0:  # below 0 it may cancel the size
            return None
        top = math.sqrt(count * ((1 - 1 / width) if spec.centered else 1.0)) if spec.order == 2 else 1.0
        if spec.order != 2 and (spec.averaged or spec.centered):
            return None
        top *= 1 + 8 * U
        lo, hi = np.full(groups.size, -top), np.full(groups.size, top)
        x = self.given[0]
        if x is not None and spec.order == 2 and np.isfinite(x[0]).all() and np.isfinite(x[1]).all():
            near = closer_norm(x[0].reshape(-1)[groups], x[1].reshape(-1)[groups], spec, count)
            lo[groups], hi[groups] = np.fmax(-top, near[0]), np.fmin(top, near[1])
        made: Span = (lo.reshape(shape), hi.reshape(shape))
        for place, combine in ((spec.weight, times), (spec.bias, plus)):
            if place is not None:
                if self.given[place] is None:
                    return None
                spread = [spec.spread(torch.from_numpy(e.copy()), shape).numpy() for e in self.given[place]]
                made = combine(made, (spread[0], spread[1]))
        return made


# -- interval arithmetic -------------------------------------------------------------------------------------
