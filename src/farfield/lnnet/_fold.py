"""One layer on a line: points go to a circle and are read along a direction, which folds the line at one place.

A number t becomes the vector (t − c, h), LayerNorm its direction, and the next linear map reads s, the cosine of its
angle to the direction of the turn t*. With w = 1/(t − t*),

    s = A u/√(1 + A²u²),   u = |w| − sign(w) κ/2,

so t and t′ on the two sides of the turn meet where 1/(t − t*) + 1/(t′ − t*) = κ. The turn and the shift κ say which
points meet and in which order the others lie; the scale A spreads them and changes no order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Fold", "Line", "between_runs", "errors", "fold", "read", "runs", "separation"]

Array = NDArray[Any]

_ROUND = 4.0
"""Roundings of the linear map before a norm and of the norm, in units of the largest term."""
_READ = 2.0
"""Roundings of the reading, in units of one."""
_REACH = 3
"""Neighbors on each side from which a point is kept apart."""


@dataclass(frozen=True)
class Fold:
    """t ↦ (cos ψ·(t − c) + sin ψ·h)/√((t − c)² + h²), as floats, arrays of floats or numbers of mpmath.

    Parameters
    ----------
    center, height
        c and h > 0: where the line is seen from.
    cosine, sine
        Of ψ, the direction along which the circle is read.
    """

    center: Any
    height: Any
    cosine: Any
    sine: Any


@dataclass(frozen=True)
class Line:
    """Points on a line in increasing order, how uncertain each is, and their classes.

    Parameters
    ----------
    t
        Positions, (n,), between −1 and 1.
    error
        First-order bounds of their errors, in units of the arithmetic's ε.
    label
        Classes, from 0.
    """

    t: Array
    error: Array
    label: Array


def fold(turn: Any, shift: Any, scale: Any, sqrt: Callable[[Any], Any]) -> Fold:
    """The layer that turns at t*, with shift κ and scale A > 0."""
    lean = scale * shift / 2
    height = scale / (1 + lean * lean)
    sine = 1 / sqrt(1 + lean * lean)
    return Fold(turn + height * lean, height, -lean * sine, sine)


def read(t: Any, layer: Fold, sqrt: Callable[[Any], Any]) -> Any:
    """The image of t."""
    v = t - layer.center
    return (layer.cosine * v + layer.sine * layer.height) / sqrt(v * v + layer.height * layer.height)


def errors(t: Array, error: Array, layer: Fold) -> Array:
    """What the errors become, to first order: carried on by the slope, with the layer's own roundings added."""
    v = t - layer.center
    r = np.hypot(v, layer.height)
    steep = np.abs(layer.cosine * layer.height - layer.sine * v) / r
    rounding = _ROUND * (np.abs(t) + np.abs(layer.center) + layer.height)
    carried: Array = steep * (layer.height / r * error + rounding) / r + _READ
    return carried


def runs(label: Array) -> Any:
    """Stretches of equal labels along the last axis."""
    return 1 + np.count_nonzero(label[..., 1:] != label[..., :-1], axis=-1)


def between_runs(line: Line) -> Array:
    """Indices k such that a run ends at k and another begins at k + 1."""
    places: Array = np.flatnonzero(line.label[1:] != line.label[:-1])
    return places


def separation(t: Array, error: Array, label: Array, power: float, far: float = 0.0) -> tuple[Any, Any, Any]:
    """How far apart neighbors of different labels are, in units of their errors: the ε that could be borne.

    Returns the worst; the logarithm of a mean, (Σ ratio^−p)^(−1/p), that many near misses lower as well as one nearer
    (for p → 0 it counts runs), neighbors but one and two weighted by ``far``; and the number of runs, each along the
    last axis.
    """
    order = np.argsort(t, axis=-1)
    t = np.take_along_axis(t, order, -1)
    error = np.take_along_axis(error, order, -1)
    label = label[order]
    worst: Any = 1.0
    total: Any = 0.0
    # Not only neighbors: a point of large error may reach across others of its own label.
    for step in range(1, min(_REACH, label.shape[-1] - 1) + 1):
        different = label[..., step:] != label[..., :-step]
        ratio = (t[..., step:] - t[..., :-step]) / (error[..., step:] + error[..., :-step])
        ratio = np.where(different, np.maximum(ratio, 1e-200), 1e9)
        worst = np.minimum(worst, ratio.min(-1))
        if step == 1 or far:
            total = total + (1.0 if step == 1 else far) * (ratio**-power).sum(-1)
    return worst, -np.log10(np.maximum(total, 1e-9)) / power, runs(label)
