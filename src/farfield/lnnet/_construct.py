"""Build an LN-Net for given points and labels, and prove by running it that it is right."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from farfield import engine as engines
from farfield._typing import Float
from farfield.errors import InvalidValueError, PrecisionError
from farfield.lnnet._exact import MOST_EXACT, Layers, exact_plan, smallest_digits
from farfield.lnnet._fold import Array
from farfield.lnnet._network import LNNet, maps
from farfield.lnnet._plan import LEAST_SPREAD, Plan, plan
from farfield.lnnet._search import FoldSearch

__all__ = ["construct"]

_ATTEMPTS = {
    "fold": ((0.1, 0), (0.2, 0), (0.35, 0), (0.5, 0), *((0.35, 1), (0.5, 1)) * 3),
    "paper": ((0.35, 0), *((0.5, 1), (0.35, 1), (0.5, 0)) * 3),
}
"""Power and weight of the far, from few layers to little error: the first attempt that survives rounding is taken."""
_ENTRIES = (300_000, 300_000, 600_000, 600_000, *(1_200_000,) * 6)
_RETREATS = 6
_ALONE = 16
"""Points that are also classified one at a time: other batch sizes round otherwise."""


def construct(
    x: Float[Tensor, "m d"],
    y: Tensor,
    *,
    rule: Literal["fold", "paper"] = "fold",
    dtype: torch.dtype | Literal["auto"] = "auto",
    generator: torch.Generator | None = None,
    progress: engines.Progress | None = None,
) -> LNNet:
    r"""A network of linear maps and LayerNorm, three neurons wide, that gives any distinct points any labels.

    The points are projected to a line. A layer maps t to the vector (t − c, h), LayerNorm keeps its direction, and
    reading that along ψ folds the line,

    .. math:: t \mapsto \cos(\theta(t) - \psi), \qquad \theta(t) = \operatorname{atan2}(h, t - c),

    so that two points of one label meet; in the end every label is one stretch of the line. There is no activation
    function: what bends is the norm. P3 takes ψ = π/2, where all points mirrored about c collide, which with three
    classes or more destroys the labels; here c, h and ψ are chosen such that points of different labels stay apart.

    Every choice is made by the error it leaves: each position carries a first-order bound of its rounding, and among
    many candidates that fold is taken that keeps different labels furthest apart in units of it. The finished module
    is run on all the points, together and in halves, and on some one by one; what is returned was right on all.
    Cost: a second or so for 100 points; time grows with m × depth, and with the attempts that rounding thwarts: where
    float64 is not enough, as for 1,000 points, all of them are made before it is refused, which takes minutes.

    Parameters
    ----------
    x
        Points, one a row; equal ones must have equal labels.
    y
        A label for every point, (m,), any number of classes, any dtype.
    rule
        ``"paper"``: one pair a layer, P3's own (the leftmost point that has a partner and the next of its label, from
        either end) while precision lasts and the best pair after that; depth ≤ m − 2 for m ≥ 3. ``"fold"``: the
        fold that leaves the best separation and the fewest runs of labels, two pairs at once where they are nested;
        much shallower.
    dtype
        Of the network. ``"auto"`` is float32 where that classifies all points, else float64.
    generator
        Source of the projections and candidates.
    progress
        Told how many of the attempts have failed and how many there are; ``engine.bar("LN-Net")`` makes one.

    Raises
    ------
    InvalidValueError
        If two equal points have different labels (both are named), or the points are not a finite real matrix that
        float64 holds and tells apart.
    PrecisionError
        If no network was found that survives rounding; up to 200 points the message says how many digits would do.

    References
    ----------
    [P3] Theorem 2 and Figure 2. The choice of c, h, ψ, the involution and the rule ``"fold"`` are ours.

    Examples
    --------
    >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> net = construct(x, torch.tensor([0, 1, 1, 0]), generator=torch.Generator().manual_seed(0))
    >>> net.predict(x), net.depth
    (tensor([0, 1, 1, 0]), 1)
    """
    if rule not in _ATTEMPTS:
        raise InvalidValueError(f"The rules are 'fold' and 'paper'; got {rule!r}.")
    if dtype not in ("auto", torch.float32, torch.float64):
        raise InvalidValueError(f"dtype is 'auto', torch.float32 or torch.float64; got {dtype!r}.")
    points, index, labels = distinct(x, y)
    seed = int(
        torch.randint(2**31, (1,), generator=generator, device=generator.device if generator else None)
    )
    rng = np.random.default_rng(seed)
    kinds = (torch.float32, torch.float64) if dtype == "auto" else (dtype,)
    searches = [(kind, s) for kind in kinds for s in _searches(rule, kind, kind is kinds[-1], len(points))]
    for done, (kind, search) in enumerate(searches):
        if progress is not None:
            progress(done, len(searches) + 1)
        found = plan(points, index, search, rng)
        net = None if found is None else _checked(_weights(found), x, y, labels, kind)
        if found is not None and net is not None:
            net.precision = max(1, math.ceil(-math.log10(found.worst)))
            net.rule = rule
            return net.to(x.device)
    if progress is not None:
        progress(len(searches), len(searches) + 1)
    # First-order bounds are wide: what is built in exact arithmetic may survive rounding where they saw no way.
    exact = exact_plan(points, index, rule, rng)
    coarse = _too_coarse(len(points), len(labels), kinds[-1], None if exact is None else exact.digits)
    net = None if exact is None else _checked(exact.layers, x, y, labels, kinds[-1])
    if net is None:
        raise coarse
    net.rule = rule
    try:
        net.precision = smallest_digits(net, x.detach(), y)
    except PrecisionError:
        # Right by its roundings alone: with more digits it would err.
        raise coarse from None
    return net.to(x.device)


def _searches(rule: Literal["fold", "paper"], kind: torch.dtype, last: bool, points: int) -> list[FoldSearch]:
    """What is tried in one arithmetic; little where a wider one is at hand."""
    eps, retreats = torch.finfo(kind).eps, _RETREATS + points // 50 if last else 0
    tried = _ATTEMPTS[rule] if last else _ATTEMPTS[rule][:1]
    return [
        FoldSearch(rule, eps, power, far, entries, retreats)
        for (power, far), entries in zip(tried, _ENTRIES, strict=False)
    ]


def distinct(x: Tensor, y: Tensor) -> tuple[Array, Array, Tensor]:
    """Distinct points in float64, their classes from 0, and the labels of the classes."""
    if x.ndim != 2 or y.shape != x.shape[:1] or x.numel() == 0:
        raise InvalidValueError(
            f"Points are a matrix, one a row, with one label each; got shapes {tuple(x.shape)} and {tuple(y.shape)}."
        )
    if x.is_complex() or bool(torch.isnan(y).any()):
        raise InvalidValueError(
            f"Points are real and labels equal to themselves; got points of {x.dtype}"
            + (" and a label that is NaN." if bool(torch.isnan(y).any()) else ".")
        )
    if not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x).all(1)).nonzero()[0])
        raise InvalidValueError(f"Points are finite; point {row} is {x[row].tolist()}.")
    labels, index = torch.unique(y, return_inverse=True)
    values = x.detach().to("cpu", torch.float64)
    if not x.is_floating_point() and bool((values.abs() > 2**53).any()):
        raise InvalidValueError(
            "Integers up to 2^53 are numbers of float64, and larger ones may fall together; the largest here is "
            f"{values.abs().max():.3g}. Subtract what the points have in common, or scale them yourself."
        )
    points, group = torch.unique(values, dim=0, return_inverse=True)
    spread = points.amax(0) / 2 - points.amin(0) / 2
    small = (spread > 0) & (spread <= LEAST_SPREAD)
    if bool(small.any()) and len(torch.unique(torch.where(small, 0.0, points), dim=0)) < len(points):
        raise InvalidValueError(
            f"Some points differ only in features that spread over less than {LEAST_SPREAD:g}, which would take "
            "weights beyond float64's range. Multiply the points by a large number."
        )
    first: dict[int, int] = {}
    for k, g in enumerate(group.tolist()):
        other = first.setdefault(g, k)
        if index[other] != index[k]:
            raise InvalidValueError(
                f"Equal points have equal labels, or no function fits them; points {other} and {k} are equal and "
                f"their labels are {y[other].item()!r} and {y[k].item()!r}. Remove one of them."
            )
    rows = torch.tensor([first[g] for g in range(len(points))])
    return points.numpy(), index.cpu()[rows].numpy(), labels


def _weights(found: Plan) -> Layers:
    """Of the linear maps; none where they leave the range of floats."""
    try:
        return maps(found)
    except OverflowError:
        return []


def _checked(layers: Layers, x: Tensor, y: Tensor, labels: Tensor, dtype: torch.dtype) -> LNNet | None:
    """The network of some weights with its margin, or None if it errs on some point in some batch."""
    rows = [row for weights, bias in layers for row in (*weights, bias)]
    if not rows or not all(math.isfinite(float(v)) for row in rows for v in row):
        return None
    net = LNNet(layers, labels.cpu(), dtype=dtype)
    x, y = x.detach().cpu(), y.cpu()
    half = max(1, len(x) // 2)
    parts = [(x, y), (x[:half], y[:half]), (x[half:], y[half:])]
    parts += [(x[k : k + 1], y[k : k + 1]) for k in range(min(len(x), _ALONE))]
    # A point beyond the range of the dtype has scores of NaN, of which argmax makes some label.
    with torch.no_grad():
        finite = bool(torch.isfinite(net(x)).all())
    if not finite or not all(torch.equal(net.predict(a), b) for a, b in parts):
        return None
    t = net.lines(x)[-1].double()
    order = t.argsort()
    t, y = t[order], y[order]
    between = y[1:] != y[:-1]
    # One run a class, and not only the right answers: the margin is then between neighbors.
    if int(between.sum()) + 1 != len(labels):
        return None
    net.margin = float((t[1:] - t[:-1])[between].min()) if len(labels) > 1 else math.inf
    return net


def _too_coarse(points: int, classes: int, dtype: torch.dtype, digits: int | None) -> PrecisionError:
    have = -math.log10(torch.finfo(dtype).eps)
    if digits is not None:
        said = f"a network that needs {digits} digits was found in exact arithmetic"
        if digits <= have:
            said += ", but it errs in the products and norms of torch, which round more often"
    elif points > MOST_EXACT:
        said = f"exact arithmetic, which would say how many are needed, is tried for {MOST_EXACT} points or fewer"
    else:
        said = "none was found in exact arithmetic either, within the time that takes"
    return PrecisionError(
        f"{points} points in {classes} classes are too close for an LN-Net in {dtype}, which has {have:.1f} "
        f"decimal digits: {said}. Use rule='fold', dtype=torch.float64, or fewer points; with more features the "
        "first projection keeps points further apart."
    )
