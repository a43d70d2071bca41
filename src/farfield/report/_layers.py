"""What an LN-Net does to its points, layer by layer, as a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farfield.report._data import Figure, Panel, Series

if TYPE_CHECKING:
    from torch import Tensor

    from farfield.lnnet import LNNet

__all__ = ["lnnet_figure"]

_SHOWN = 3
"""Layers drawn at most: the first ones and the last."""
_ARC = tuple(2 * math.pi * k / 90 for k in range(91))


def lnnet_figure(net: LNNet, x: Tensor, y: Tensor) -> Figure:
    """The points, their projection, and for each layer the circle and what is read from it: [P3] Figures 1 and 2.

    Of a deep network the first two layers and the last are drawn. On a line the labels stand one above the other.

    Parameters
    ----------
    net
        From :func:`farfield.lnnet.construct`.
    x, y
        Points, (n, d), and labels, (n,).

    Examples
    --------
    >>> import torch
    >>> from farfield.lnnet import construct
    >>> x, y = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1, 1, 0])
    >>> [panel.title for panel in lnnet_figure(construct(x, y), x, y).panels]
    ['points', 'projected', 'LayerNorm 1', 'read']
    """
    labels = net.labels.tolist()
    index = [labels.index(v) for v in y.tolist()]
    circles, lines = net.circles(x).tolist(), net.lines(x).tolist()
    panels = []
    if x.shape[1] > 1:
        panels.append(Panel("points", "x₁", "x₂", _scatter(x[:, :2].tolist(), index, labels)))
    panels.append(_line("projected", lines[0], index, labels))
    shown = range(net.depth) if net.depth <= _SHOWN else (*range(_SHOWN - 1), net.depth - 1)
    for k in shown:
        arc = Series("", tuple(map(math.cos, _ARC)), tuple(map(math.sin, _ARC)), style="dotted", color=7)
        circle = (arc, *_scatter(circles[k], index, labels))
        panels.append(Panel(f"LayerNorm {k + 1}", "along", "across", circle, y_range=(-1.1, 1.1)))
        panels.append(_line("read", lines[k + 1], index, labels))
    title = f"{len(x)} points, {len(labels)} labels, {net.depth} LayerNorm of width 3"
    return Figure(title, tuple(panels), columns=4)


def _scatter(
    places: Sequence[Sequence[float]], index: Sequence[int], labels: Sequence[object]
) -> tuple[Series, ...]:
    return tuple(
        Series(
            f"label {label}",
            tuple(place[0] for place, k in zip(places, index, strict=True) if k == c),
            tuple(place[1] for place, k in zip(places, index, strict=True) if k == c),
            style="points",
            color=c,
        )
        for c, label in enumerate(labels)
    )


def _line(title: str, t: Sequence[float], index: Sequence[int], labels: Sequence[object]) -> Panel:
    rows = list(zip(t, map(float, index), strict=True))
    return Panel(title, "t", "label", _scatter(rows, index, labels), y_range=(-0.5, len(labels) - 0.5))
