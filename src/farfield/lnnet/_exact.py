"""LN-Nets in arithmetic of any number of digits: how many a network really needs."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
from torch import Tensor, nn

from farfield._typing import Float
from farfield.errors import PrecisionError
from farfield.lnnet._fold import Array
from farfield.lnnet._network import LNNet, Matrix, maps
from farfield.lnnet._plan import Numbers, plan
from farfield.lnnet._search import Search

__all__ = ["digits_of_plan", "smallest_digits"]

_SIZES = (24, 40, 80)
"""Digits in which a network is looked for when float64 does not do."""
_MOST = 400
"""Points up to which that is worth the time."""

Layers = list[tuple[Matrix, list[Any]]]


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
    wanted = [place[label] for label in y.tolist()]
    found = _smallest(layers, x.double().tolist(), wanted, most)
    if found is None:
        raise PrecisionError(
            f"The network gives some point a wrong label even in arithmetic of {most} digits. Is it the one built for these "
            "points and labels?"
        )
    return found


def digits_of_plan(points: Array, label: Array, rule: Any, rng: np.random.Generator) -> int | None:
    """Digits that a network built in exact arithmetic needs; None if none was found."""
    if len(points) > _MOST:
        return None
    for digits in _SIZES:
        with mpmath.workdps(2 * digits):
            numbers = Numbers(mpmath.mpf, mpmath.sqrt)
            search = Search(rule, 10.0**-digits, 0.5, 300_000)
            found = plan(points, label, search, rng, numbers)
            if found is not None:
                layers = maps(found, mpmath.sqrt)
                return _smallest(layers, points.tolist(), label.tolist(), 2 * digits)
    return None


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
        stabiliser = mpf(10) ** -5
        for point, label in zip(points, wanted, strict=True):
            y = [+mpf(v) for v in point]
            for k, (weights, bias) in enumerate(rounded):
                y = [mpmath.fdot(row, y) + b for row, b in zip(weights, bias, strict=True)]
                if k < len(rounded) - 1:
                    mean = (y[0] + y[1] + y[2]) / 3
                    z = [v - mean for v in y]
                    size = mpmath.sqrt((z[0] * z[0] + z[1] * z[1] + z[2] * z[2]) / 3 + stabiliser)
                    y = [v / size for v in z]
            if max(range(len(y)), key=lambda c: y[c]) != label:
                return False
    return True
