"""A node that is linear in a group of operands while the others are constants: f(x) = Σ L x + f(0), and Σ |L||x|."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farfield.certify.checker._values import Array, gamma, run
from farfield.graph import Facts, Node, linear_part

__all__ = ["AffineMap"]


class AffineMap:
    """The linear maps of one node.

    Parameters
    ----------
    node, facts
        The operation and what it is.
    group
        The operands it is linear in.
    fixed
        Operands outside the group: tensors, exact. Zeros of the right shape in the group, ``None`` where absent.
    """

    def __init__(
        self, node: Node, facts: Facts, group: Sequence[int], fixed: Sequence[Tensor | None]
    ) -> None:
        self.node, self.facts, self.group, self.fixed = node, facts, group, list(fixed)
        self.places = [i for i in group if i < len(fixed) and fixed[i] is not None]
        self.outside = [f for i, f in enumerate(fixed) if f is not None and i not in group]
        # A sum of products of entries of x and w: |f(x, w)| ≤ f(|x|, |w|).
        linear = {i for g in facts.linear for i in g}
        self.bilinear = all(f is None or i in linear for i, f in enumerate(fixed)) and bool(self.outside)
        self.single = facts.entrywise or node.op in ("batch_norm", "instance_norm")
        """Every entry of the result depends on one entry of each operand, so |L||x| = |Lx| for x ≥ 0."""

    @property
    def supported(self) -> bool:
        """Whether |L| is known for every operand of the group."""
        return all(self._sign(i) or self.single or self.bilinear for i in self.places)

    def _sign(self, place: int) -> int:
        """1 or −1 where L, or −L, has no negative entry."""
        if self.facts.moves:
            return 1
        return self.facts.monotone[place] if place < len(self.facts.monotone) else 0

    def loss(self, place: int) -> float:
        """What rounding may take from L x, as a share of |L||x|."""
        if self.facts.moves:
            return 0.0
        operand = self.fixed[place]
        assert operand is not None
        return gamma(32) if self.single else gamma(min(f.numel() for f in (operand, *self.outside)) + 16)

    def offset(self) -> Any:
        """f(0)."""
        return run(self.node, self.fixed)

    def apply(self, place: int, rows: Array) -> Any:
        """L x for every row x."""
        plain, kept = linear_part(self.node, self.fixed, self.group, [place])
        return run(plain, [rows if i == place else k for i, k in enumerate(kept)], [place])

    def absolute(self, place: int, rows: Array) -> Any:
        """At least |L| x for every row x of non-negative numbers."""
        if self.node.op == "lerp":  # the coefficients 1 − w and w are rounded as numbers of size 1 + |w|
            largest = max([float(f.abs().max()) for f in self.outside], default=0.0)
            weight = max(largest, abs(float(self.node.attributes.get("weight") or 0.0)))
            spread = replace(self.node, op="add", inputs=self.node.inputs[:2], attributes={})
            return (1 + 2 * weight) * run(
                spread, [rows if i == place else f for i, f in enumerate(self.fixed[:2])], [place]
            )
        if self._sign(place) or self.single:
            made = self.apply(place, rows)
            return tuple(np.abs(m) for m in made) if isinstance(made, tuple) else np.abs(made)
        plain, kept = linear_part(self.node, self.fixed, self.group, [place])
        numbers = {k: abs(plain.attributes[k]) for k in ("alpha", "beta") if k in plain.attributes}
        sized = [
            rows if i == place else k.abs() if isinstance(k, torch.Tensor) else k for i, k in enumerate(kept)
        ]
        return run(replace(plain, attributes={**plain.attributes, **numbers}), sized, [place])
