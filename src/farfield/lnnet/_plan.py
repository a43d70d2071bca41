"""From points to a sequence of folds, in floating or in exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farfield.lnnet._fold import Array, Fold, Line, between_runs, errors, fold, read, runs, separation
from farfield.lnnet._search import FoldSearch, next_fold

__all__ = ["LEAST_SPREAD", "Numbers", "Plan", "Projection", "float_numbers", "plan", "project", "projected"]

_DRAWS = 32
"""Random directions of which the first layer takes the best."""
LEAST_SPREAD = 1e-280
"""Features that spread over less are not looked at: their weights would leave float64's range."""
_BACK = 6
"""Layers that are taken back at a dead end."""


@dataclass(frozen=True)
class Numbers:
    """An arithmetic: how numbers are made from floats, their square roots, and e such that v < 2^e ≤ 2v."""

    make: Callable[[float], Any]
    sqrt: Callable[[Any], Any]
    magnitude: Callable[[Any], int]


float_numbers = Numbers(float, math.sqrt, lambda v: math.frexp(v)[1])


@dataclass(frozen=True)
class Projection:
    """The first linear map, t = weight·x + bias, with every point between −1 and 1."""

    weight: Array
    bias: float
    line: Line
    order: Array
    worst: float


@dataclass(frozen=True)
class Plan:
    """What a network does: a projection, folds, and thresholds between the classes on the last line.

    Parameters
    ----------
    weight, bias
        Of the projection.
    folds
        One a layer.
    classes
        The class of each run, from left to right.
    thresholds
        Between the runs, one fewer.
    worst
        The smallest separation of two runs, in units of their errors: the ε that the plan bears.
    """

    weight: Array
    bias: float
    folds: tuple[Fold, ...]
    classes: tuple[int, ...]
    thresholds: tuple[Any, ...]
    worst: float


def project(points: Array, label: Array, search: FoldSearch, rng: np.random.Generator) -> Projection:
    """The best of some random directions, every feature in units of its own spread."""
    low, high = points.min(0), points.max(0)
    # Halved first: the difference of two large numbers of opposite signs may overflow.
    spread = high / 2 - low / 2
    moving = spread > LEAST_SPREAD
    best: tuple[tuple[bool, float], Projection] | None = None
    for _ in range(_DRAWS if moving.sum() > 1 else 1):
        direction = rng.standard_normal(points.shape[1]) if moving.sum() > 1 else np.ones(points.shape[1])
        weight = np.where(moving, direction / np.where(moving, spread, 1.0), 0.0)
        t = points @ weight
        reach = float(t.max() / 2 - t.min() / 2) or 1.0
        weight = weight / reach
        bias = -float(t.max() / 2 + t.min() / 2) / reach
        t = points @ weight + bias
        error = (2.0 + 0.5 * math.sqrt(len(weight))) * (np.abs(points) @ np.abs(weight) + abs(bias))
        order = np.argsort(t, kind="stable")
        line = Line(t[order], error[order], label[order])
        worst, mean, _ = separation(line.t, line.error, line.label, search.power, search.far)
        key = (bool(worst > search.eps), float(mean))
        if best is None or key > best[0]:
            best = (key, Projection(weight, bias, line, order, float(worst)))
    assert best is not None
    return best[1]


def plan(
    points: Array,
    label: Array,
    search: FoldSearch,
    rng: np.random.Generator,
    numbers: Numbers = float_numbers,
) -> Plan | None:
    """Folds after which every class is one run; None where ε is too large to tell points apart on the way.

    The search sees floats; positions are carried on in the arithmetic given.
    """
    first = project(points, label, search, rng)
    if first.worst <= 4 * search.eps:
        return None
    classes = len(np.unique(label))
    line, worst = first.line, first.worst
    exact = projected(points[first.order], first, numbers)
    folds: list[Fold] = []
    before = [(line, exact, worst)]
    # One pair a layer brings every class to one point in so many; points that rounding drove apart may take more.
    most = len(points) - classes if search.rule == "paper" else 3 * len(points)
    retreats = 0
    while runs(line.label) > classes:
        choice = next_fold(line, classes, worst, search, rng)
        if choice is None or len(folds) >= most:
            # A dead end was entered some layers ago: back, and on with other candidates.
            if retreats == search.retreats or len(folds) < _BACK:
                return None
            retreats += 1
            del folds[-_BACK:], before[-_BACK:]
            line, exact, worst = before[-1]
            continue
        turn = numbers.make(choice.turn)
        shift = 1 / (exact[choice.first] - turn) + 1 / (exact[choice.second] - turn)
        layer = fold(turn, shift, numbers.make(choice.scale), numbers.sqrt)
        folds.append(layer)
        line, exact = _folded(line, exact, layer, search.eps, numbers)
        worst = float(separation(line.t, line.error, line.label, search.power)[0])
        before.append((line, exact, worst))
    if not folds:
        # Nothing to fold: the circle is read along the line, which keeps the order.
        layer = Fold(numbers.make(0.0), numbers.make(1.0), numbers.make(1.0), numbers.make(0.0))
        folds.append(layer)
        line, exact = _folded(line, exact, layer, search.eps, numbers)
        worst = float(separation(line.t, line.error, line.label, search.power)[0])
    if worst <= 4 * search.eps:
        return None
    ends = between_runs(line)
    return Plan(
        first.weight,
        first.bias,
        tuple(folds),
        tuple(int(line.label[k]) for k in (*ends, len(line.label) - 1)),
        tuple((exact[k] + exact[k + 1]) / 2 for k in ends),
        worst,
    )


def projected(points: Array, first: Projection, numbers: Numbers) -> list[Any]:
    """Positions of points on the first line."""
    if numbers is float_numbers:
        return list(first.line.t.tolist())
    weight = [numbers.make(float(w)) for w in first.weight]
    bias = numbers.make(first.bias)
    return [
        sum((w * numbers.make(float(v)) for w, v in zip(weight, row, strict=True)), bias) for row in points
    ]


def _folded(
    line: Line, exact: Sequence[Any], layer: Fold, eps: float, numbers: Numbers
) -> tuple[Line, list[Any]]:
    """Points after a layer, in order again; those of one label that lie within equal errors become one."""
    image = [read(t, layer, numbers.sqrt) for t in exact]
    shadow = Fold(*(float(v) for v in (layer.center, layer.height, layer.cosine, layer.sine)))
    error = errors(line.t, line.error, shadow)
    order = sorted(range(len(image)), key=lambda k: image[k])
    kept: list[int] = []
    bound: list[float] = []
    for k in order:
        if kept and line.label[k] == line.label[kept[-1]]:
            apart = float(image[k] - image[kept[-1]])
            wider = max(bound[-1], float(error[k]) + apart / eps)
            # Only among equals: an uncertain point must not make a certain neighbor uncertain too.
            if apart <= eps * (error[k] + error[kept[-1]]) and wider <= 4 * min(error[k], error[kept[-1]]):
                bound[-1] = wider
                continue
        kept.append(k)
        bound.append(float(error[k]))
    values = [image[k] for k in kept]
    return Line(np.array([float(v) for v in values]), np.array(bound), line.label[kept]), values
