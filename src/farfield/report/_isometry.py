"""Isometry along a network, drawn."""

from __future__ import annotations

from farfield.geometry import IsometryRecord
from farfield.report._data import Figure, Panel, Series

__all__ = ["isometry_figure"]


def isometry_figure(record: IsometryRecord) -> Figure:
    """Gap, rank and mean cosine by layer, in the order of the calls; a color for each kind of layer.

    Gaps that are 0 or ∞ have no place on a logarithmic axis and are left out; the table has them.

    Examples
    --------
    >>> import torch
    >>> from farfield.geometry import record_isometry
    >>> [panel.title for panel in isometry_figure(record_isometry(torch.nn.Identity(), torch.eye(3))).panels]
    ['isometry gap', 'rank', 'mean cosine']
    """
    kinds = list(dict.fromkeys(record.kinds))
    at = tuple(float(k) for k in range(1, len(record.names) + 1))

    def panel(title: str, values: tuple[float, ...], log: bool) -> Panel:
        def own(kind: str) -> Series:
            kept = [
                (x, v)
                for x, v, k in zip(at, values, record.kinds, strict=True)
                if k == kind and abs(v) < float("inf") and (v > 0 or not log)
            ]
            return Series(
                kind,
                tuple(x for x, _ in kept),
                tuple(v for _, v in kept),
                style="points",
                color=kinds.index(kind),
            )

        return Panel(title, "call", title, tuple(map(own, kinds)), y_scale="log" if log else "linear")

    panels = (
        panel("isometry gap", tuple(record.gaps.tolist()), True),
        panel("rank", tuple(record.ranks.tolist()), False),
        panel("mean cosine", tuple(record.cosines.tolist()), False),
    )
    rows = max(record.rows)
    return Figure(
        "Isometry through the network", panels, f"At most {rows} rows compared behind a layer.", columns=3
    )
