"""LN-Nets in arithmetic of any number of digits: how many a network really needs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
from torch import Tensor, nn

from farfield._typing import Float
from farfield.errors import InvalidValueError, PrecisionError
from farfield.lnnet._fold import Array, Fold, fold, read
from farfield.lnnet._network import LNNet, Matrix, maps
from farfield.lnnet._plan import Numbers, Plan, plan, project, projected
from farfield.lnnet._search import FoldSearch

__all__ = ["MOST_EXACT", "Exact", "exact_plan", "smallest_digits"]

_SIZES = (24, 40, 80)
"""Digits in which a network is looked for when float64 does not do."""
MOST_EXACT = 200
"""Points up to which that is worth the time."""
_OWN = (100, 400, 1600)
_FEW = 40
"""The same for P3's construction as printed, which tells apart any points and spends digits fast."""
_PARTS = (0.5, 0.43, 0.37, 0.58)
"""Where between a pair to turn."""
_NUMBERS = Numbers(mpmath.mpf, mpmath.sqrt, mpmath.mag)

Layers = list[tuple[Matrix, list[Any]]]


@dataclass(frozen=True)
class Exact:
    """A network built in exact arithmetic: weights for torch's LayerNorm, and the digits found to be needed."""

    layers: Layers
    digits: int


def smallest_digits(net: LNNet, x: Float[Tensor, "m d"], y: Tensor, *, most: int = 60) -> int:
    """The fewest decimal digits in which a network gives every point its label: measured, not bounded.

    The module's own operations, weights included, are rounded to so many digits with mpmath; LayerNorm is computed as
    torch does. Found by bisection, which takes it that more digits do no harm. Some milliseconds a point
    and layer.

    Parameters
    ----------
    net
        From :func:`construct`.
    x, y
        Points and labels.
    most
        Digits at which to give up.

    Raises
    ------
    InvalidValueError
        If a label is none of the network's.
    PrecisionError
        If the network errs even with ``most`` digits.

    Examples
    --------
    >>> import torch
    >>> from farfield.lnnet import construct
    >>> x = torch.tensor([[0.0], [1.0], [2.0]])
    >>> net = construct(x, torch.tensor([0, 1, 0]), generator=torch.Generator().manual_seed(0))
    >>> smallest_digits(net, x, torch.tensor([0, 1, 0])) <= net.precision <= 7
    True
    """
    linear = [m for m in net.modules() if isinstance(m, nn.Linear)]
    layers = [(m.weight.tolist(), m.bias.tolist()) for m in linear]
    place = {label: k for k, label in enumerate(net.labels.tolist())}
    strange = sorted(set(y.tolist()) - set(place))
    if strange or len(x) != len(y):
        raise InvalidValueError(
            f"Points are {len(x)} and labels {len(y)}, each one that the network was built for; it does not know the "
            f"labels {strange[:5]}."
        )
    wanted = [place[label] for label in y.tolist()]
    found = _smallest(layers, x.double().tolist(), wanted, most)
    if found is None:
        raise PrecisionError(
            f"The network gives some point a wrong label even in arithmetic of {most} digits. Is it the one built "
            "for these points and labels?"
        )
    return found


def exact_plan(points: Array, label: Array, rule: Any, rng: np.random.Generator) -> Exact | None:
    """A network built in exact arithmetic; None if none was found."""
    rows, wanted = points.tolist(), label.tolist()
    for digits in _SIZES if len(points) <= MOST_EXACT else ():
        with mpmath.workdps(2 * digits):
            found = plan(points, label, FoldSearch(rule, 10.0**-digits, 0.5, 1.0, 300_000), rng, _NUMBERS)
            if found is not None:
                needed = _smallest(_layers(found, digits), rows, wanted, 2 * digits)
                return None if needed is None else Exact(maps(found, _NUMBERS), needed)
    for digits in _OWN if len(points) <= _FEW else ():
        with mpmath.workdps(digits):
            found = own_order(points, label, rng)
            if found is not None:
                needed = _smallest(_layers(found, digits), rows, wanted, digits)
                if needed is not None:
                    return Exact(maps(found, _NUMBERS), needed)
    return None


def _layers(found: Plan, digits: int) -> Layers:
    return maps(found, _NUMBERS, lift=mpmath.mpf(10) ** (digits // 2))


def own_order(points: Array, label: Array, rng: np.random.Generator) -> Plan | None:
    """P3's construction as printed, in mpmath's present precision: from the left, one pair after the other.

    With more than two classes, the turn leaves the middle of the pair where mirrored points would meet. None where
    the precision does not tell two labels apart.
    """
    first = project(points, label, FoldSearch("paper", 0.0, 0.5, 0.0, 1), rng)
    exact = projected(points[first.order], first, _NUMBERS)
    state = sorted(zip(exact, label[first.order].tolist(), strict=True))
    classes = len(set(label.tolist()))
    least = mpmath.mpf(10) ** (5 - mpmath.mp.dps)
    folds: list[Fold] = []
    while not folds or _runs(state) > classes:
        options = [_own_fold(state, part) for part in (_PARTS[:1] if classes == 2 else _PARTS)]
        layer, state = max(((f, _after(state, f, least)) for f in options), key=lambda o: _closest(o[1]))
        folds.append(layer)
        if _closest(state) < 100 * least:
            return None
    ends = [k for k in range(len(state) - 1) if state[k][1] != state[k + 1][1]]
    runs = tuple(state[k][1] for k in (*ends, len(state) - 1))
    cuts = tuple((state[k][0] + state[k + 1][0]) / 2 for k in ends)
    return Plan(first.weight, first.bias, tuple(folds), runs, cuts, float("nan"))


State = list[tuple[Any, int]]
"""Positions in increasing order, and classes."""


def _runs(state: State) -> int:
    return 1 + sum(a[1] != b[1] for a, b in itertools.pairwise(state))


def _closest(state: State) -> Any:
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(state) if a[1] != b[1]]
    return min(gaps, default=mpmath.mpf(1))


def _own_fold(state: State, part: float) -> Fold:
    """Turning between the leftmost point that has a partner and the next of its label."""
    classes = [c for _, c in state]
    start = next((k for k, c in enumerate(classes) if c in classes[k + 1 :]), None)
    if start is None or _runs(state) == len(set(classes)):
        return Fold(mpmath.mpf(0), mpmath.mpf(1), mpmath.mpf(1), mpmath.mpf(0))
    left, right = state[start][0], state[classes.index(classes[start], start + 1)][0]
    turn = left + mpmath.mpf(part) * (right - left)
    return fold(turn, 1 / (left - turn) + 1 / (right - turn), (right - left) / 2, mpmath.sqrt)


def _after(state: State, layer: Fold, least: Any) -> State:
    """In order again; points of one label that have met become one."""
    kept: State = []
    for t, c in sorted((read(t, layer, mpmath.sqrt), c) for t, c in state):
        if not (kept and kept[-1][1] == c and t - kept[-1][0] < least):
            kept.append((t, c))
    return kept


def _smallest(layers: Layers, points: list[list[float]], wanted: list[int], most: int) -> int | None:
    if not _right(layers, points, wanted, most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if _right(layers, points, wanted, middle):
            high = middle
        else:
            low = middle
    return high


def _right(layers: Layers, points: list[list[float]], wanted: list[int], digits: int) -> bool:
    """Whether all points get their labels when everything is rounded to so many digits."""
    with mpmath.workdps(digits):
        mpf = mpmath.mpf
        rounded = [
            ([[+mpf(v) for v in row] for row in weights], [+mpf(v) for v in bias]) for weights, bias in layers
        ]
        stabilizer = mpf(10) ** -5
        for point, label in zip(points, wanted, strict=True):
            y = [+mpf(v) for v in point]
            for k, (weights, bias) in enumerate(rounded):
                y = [mpmath.fdot(row, y) + b for row, b in zip(weights, bias, strict=True)]
                if k < len(rounded) - 1:
                    mean = (y[0] + y[1] + y[2]) / 3
                    z = [v - mean for v in y]
                    size = mpmath.sqrt((z[0] * z[0] + z[1] * z[1] + z[2] * z[2]) / 3 + stabilizer)
                    y = [v / size for v in z]
            if max(range(len(y)), key=lambda c: y[c]) != label:
                return False
    return True
