"""What a node *is*, said once: the facts that every analysis reads and none writes down again.

An operator's table entry says which facts hold, as a value or as a function of the node where they depend on its
attributes, result type or mode. :func:`farfield.graph.describe` reads them for one node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from farfield.gaussian import ScalarFunction
from farfield.graph._node import Node

__all__ = [
    "MOVES",
    "NOTHING",
    "RANDOM",
    "TRUTH",
    "Domain",
    "EpsMode",
    "Facts",
    "FactsOf",
    "NormSpec",
    "axes_norm",
    "channel_norm",
    "linear_in",
    "moves_all",
    "when_floating",
]

EpsMode: TypeAlias = Literal["inside", "outside", "clamp"]


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A norm: y = c / size(c) · weight + bias within each group of entries, c = z or z − mean(z).

    size(c)² = Σ|c|²/count (with count = 1 for l2), stabilized by ``eps`` as ``eps_mode`` says; for ``order`` p ≠ 2
    the p-norm takes the place of √Σc².

    Parameters
    ----------
    axes
        Axes normalized over. For grouped norms: every axis but the first, channels (axis 1) cut into ``groups``.
    groups
        Number of groups the channel axis is cut into; ``None`` where ``axes`` says everything. ``0`` stands for one
        group per channel (instance norm).
    centered
        Whether the mean of the group is taken off first.
    averaged
        Whether size² is a mean of squares (LayerNorm, RMSNorm) or their sum (``l2_normalize``).
    correction
        What is taken off the number of entries in that mean.
    order
        p of the p-norm.
    eps, eps_mode
        The stabilizer and where it stands: √(size² + eps), size + eps or max(size, eps).
    weight, bias
        Positions of the affine parameters among ``node.inputs``; ``None`` where the operator has no such argument
        or this node leaves it out. They are *operands*: a computed weight moves with the input.
    parameter_axes
        Axes of the value along which weight and bias lie.
    """

    axes: tuple[int, ...]
    groups: int | None
    centered: bool
    averaged: bool
    correction: float
    order: float
    eps: float
    eps_mode: EpsMode
    weight: int | None
    bias: int | None
    parameter_axes: tuple[int, ...]

    def group_index(self, shape: Sequence[int]) -> Tensor:
        """(groups, entries of a group): flat positions of the entries that are normalized together."""
        index = torch.arange(math.prod(shape)).reshape(tuple(shape))
        if self.groups is None:
            rest = [d for d in range(len(shape)) if d not in self.axes]
            return index.permute(*rest, *self.axes).reshape(-1, self.size(shape))
        return index.reshape(-1, self.size(shape))

    def size(self, shape: Sequence[Any]) -> int:
        """Number of entries that are normalized together; every size involved must be a number."""
        if self.groups is None:
            return math.prod(int(shape[d]) for d in self.axes)
        inner = math.prod(int(d) for d in shape[2:])
        return inner if self.groups == 0 else inner * int(shape[1]) // self.groups

    def count(self, size: int) -> float:
        """What Σc² is divided by before the root is taken."""
        return float(size - self.correction) if self.averaged else 1.0

    def radius(self, size: int) -> float:
        """The largest ‖c / size(c)‖₂ of a group of ``size`` entries, before weight and bias."""
        return math.sqrt(self.count(size)) * math.pow(size, max(0.0, 0.5 - 1.0 / self.order))

    def spread(self, parameter: Tensor, shape: Sequence[int]) -> Tensor:
        """A weight or bias laid out along the value's entries, as a tensor of the value's shape."""
        view = [shape[d] if d in self.parameter_axes else 1 for d in range(len(shape))]
        return parameter.reshape(view).expand(tuple(shape))


@dataclass(frozen=True, slots=True)
class Domain:
    """Where a continuous monotone function of one real number is defined, and how it grows to an infinite end.

    Parameters
    ----------
    low, high
        The ends of the domain.
    open
        Whether finite ends are poles: the function is not defined there.
    growth
        What |x| goes through towards an infinite end.
    """

    low: float = -math.inf
    high: float = math.inf
    open: bool = False
    growth: Literal["exponential", "logarithmic"] = "exponential"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one node before any analysis.

    Parameters
    ----------
    moves
        Every entry of the result is an entry of one of the operands in ``linear``, or 0; which one does not depend
        on their values. Nothing is rounded.
    fills
        Of what moves entries: some entries of the result may be 0 where no operand is.
    linear
        Groups of operand positions. In each group the result is linear *jointly* while every operand outside the
        group is held fixed; with the group's operands 0 the result is 0. A number that stands in the place of an
        operand counts as a constant operand. ``x + y``: ``((0, 1),)``; ``x · y``: ``((0,), (1,))``.
    monotone
        Per operand: 1 where every entry of the result is non-decreasing in every entry of it, −1 non-increasing,
        0 unknown. Shorter than the operands: the rest is 0.
    entrywise
        Each entry of the result depends on the entry at the same place of the (broadcast) operands alone.
    deterministic
        Run twice on the same operands, it gives the same value.
    norm
        Its geometry, if the node is a norm by its own input's statistics.
    complex
        Whether its rules understand complex operands.
    offsets
        Attributes that hold a number which is added to the linear part (the fill value of padding).
    positive
        Every entry is greater than 0 whatever the operands are (they may come arbitrarily close to 0).
    scalar
        The function of one real number that is applied to every entry of the only operand, if it is known.
    domain
        Of a function of one real number that is continuous and, as ``monotone`` says, rises or falls there.
    range
        Numbers between which every entry of a real result lies, whatever the operands are.
    products
        In every linear group, the coefficient of any one entry of any one operand is 0, 1 or an entry of an operand
        outside the group (or the number in its place): absolute values of these give absolute coefficients.
    """

    moves: bool = False
    fills: bool = False
    linear: tuple[tuple[int, ...], ...] = ()
    monotone: tuple[int, ...] = ()
    entrywise: bool = False
    deterministic: bool = True
    norm: NormSpec | None = None
    complex: bool = False
    offsets: tuple[str, ...] = ()
    positive: bool = False
    scalar: ScalarFunction | None = None
    domain: Domain | None = None
    range: tuple[float, float] = (-math.inf, math.inf)
    products: bool = False

    def linear_group(self, moving: Sequence[int]) -> tuple[int, ...] | None:
        """The first group that holds all these operands, if there is one: the node is affine in them together."""
        wanted = set(moving)
        return next((group for group in self.linear if wanted <= set(group)), None)


FactsOf: TypeAlias = "Facts | Callable[[Node], Facts]"
NOTHING = Facts()
MOVES = Facts(moves=True, linear=((0,),), monotone=(1,), complex=True)
RANDOM = Facts(deterministic=False)
TRUTH = Facts(range=(0.0, 1.0))


def moves_all(node: Node) -> Facts:
    """Facts of an operator that moves the entries of all its operands (``cat``, ``stack``)."""
    everything = tuple(range(len(node.inputs)))
    return Facts(moves=True, linear=(everything,), monotone=(1,) * len(everything), complex=True)


def linear_in(*groups: tuple[int, ...], **more: Any) -> Facts:
    """Facts of an operator that is linear in these groups of operands."""
    return Facts(linear=groups, **more)


def when_floating(facts: Facts) -> Callable[[Node], Facts]:
    """These facts where the result is floating or complex; nothing where it is cut to whole numbers on the way."""
    bare = replace(facts, moves=False, linear=(), monotone=(), products=False)

    def of(node: Node) -> Facts:
        real = node.dtype is None or node.dtype.is_floating_point or node.dtype.is_complex
        return facts if real else bare

    return of


def axes_norm(node: Node, attributes: Mapping[str, Any], **given: Any) -> NormSpec:
    """A norm over the axes named by the attribute ``dim``."""
    axes = tuple(attributes["dim"])
    return NormSpec(
        axes=axes,
        groups=None,
        correction=float(attributes.get("correction", 0)),
        eps=float(attributes.get("eps") or 0.0),
        eps_mode=attributes.get("eps_mode", "inside"),
        weight=_present(node, 1),
        bias=_present(node, 2),
        parameter_axes=axes,
        **{"centered": False, "averaged": True, "order": 2.0, **given},
    )


def channel_norm(node: Node, groups: int) -> NormSpec:
    """A norm over groups of channels (axis 1) and everything behind them."""
    return NormSpec(
        axes=tuple(range(1 if groups else 2, len(node.shape))),
        groups=groups,
        centered=True,
        averaged=True,
        correction=0.0,
        order=2.0,
        eps=float(node.attributes.get("eps") or 0.0),
        eps_mode="inside",
        weight=_present(node, 1),
        bias=_present(node, 2),
        parameter_axes=(1,),
    )


def _present(node: Node, position: int) -> int | None:
    there = position < len(node.inputs) and node.inputs[position] is not None
    return position if there else None
