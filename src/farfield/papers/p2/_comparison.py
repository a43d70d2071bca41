"""Random networks side by side: a panel of gaps for every group of them, and what is claimed of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, Unpack

from farfield.papers._experiment import ClaimVerdict, ExperimentResult
from farfield.papers.p2._simulation import Layering, Sizes, Trace, measured, simulate
from farfield.report import Figure, Panel, Series

__all__ = ["Found", "compare", "gap_panel"]

Found: TypeAlias = "tuple[Sequence[ClaimVerdict], dict[str, Any]]"
"""Verdicts on a group of networks, and the numbers behind them."""


def compare(
    groups: Mapping[str, Mapping[str, Layering]],
    claim: Callable[[str, Sequence[Trace]], Found],
    *,
    title: str,
    caption: str,
    columns: int = 4,
    **sizes: Unpack[Sizes],
) -> ExperimentResult:
    """Run groups of networks on the same inputs and weights; every group has a panel and claims of its own.

    Parameters
    ----------
    groups
        For every panel's title its curves: label → layering.
    claim
        From a panel's title and the traces of its curves to what is found.
    title, caption, columns
        Of the figure; ``{n}``, ``{width}`` and the like in the caption stand for the sizes.
    """
    traces = iter(simulate([layering for curves in groups.values() for layering in curves.values()], **sizes))
    panels: list[Panel] = []
    verdicts: list[ClaimVerdict] = []
    numbers: dict[str, Any] = {}
    for name, curves in groups.items():
        own = {label: next(traces) for label in curves}
        panels.append(gap_panel(name, own))
        judged, values = claim(name, tuple(own.values()))
        verdicts += judged
        numbers |= values
    figure = Figure(title, tuple(panels), caption.format(**sizes), columns=columns)
    return ExperimentResult(tuple(verdicts), numbers, figure)


def gap_panel(
    title: str,
    curves: Mapping[str, Trace],
    *beside: Series,
    color: int = 0,
    y_range: tuple[float, float] | None = None,
) -> Panel:
    """Isometry gaps through depth with their bands, colors counted from ``color``, and what stands beside them."""
    series = [measured(label, t.gap, k) for k, (label, t) in enumerate(curves.items(), color)]
    label = "isometry gap −log I"
    return Panel(title, "layer ℓ", label, (*series, *beside), y_scale="log", y_range=y_range)
