"""Results as one matplotlib picture each: rays with bounds and the data's range, proved and attained ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from farfield.report._certificate import BoundRow, bound_rows
from farfield.report._plots import COLORS, new_axes
from farfield.report._rollout import rollout_rows
from farfield.report._words import clean, joint_verdicts

__all__ = ["plot_audit", "plot_certificate", "plot_repair", "plot_rollout"]

_BARS = 24
"""Outputs drawn; the rest is counted in the title."""
_BLUE, _ORANGE, _GREEN, _GRAY = COLORS[0], COLORS[1], COLORS[2], COLORS[7]


def plot_audit(audit: Mapping[str, Any], *, ax: Any = None) -> Any:
    """Draw |f(λu)| along the rays of an audit, with the proved bound and the norms of the data where there are any.

    ``audit`` is what ``Audit.to_dict()`` gives; ``ax`` are matplotlib's axes, of a new figure by default.
    """
    data, axes = clean(audit), new_axes() if ax is None else ax
    radii = [float(r) for r in data["rays"]["radii"]]
    for series in data["rays"]["series"]:
        values = [float(v) if v is not None else math.nan for v in series["values"]]
        if series["label"] == "witness":
            label, color, width = "direction that proves the growth", _ORANGE, 2.2
        else:
            label, color, width = "random directions", _BLUE, 1.1
        axes.plot(radii, values, "-", color=color, linewidth=width, label=_once(axes, label))
    bound = _largest(data)
    if bound is not None:
        axes.axhline(bound, color=_GREEN, linestyle="--", linewidth=1.6, label="proved for every input")
    if data.get("data") and "norms" in data["data"]:
        _shade(axes, [max(float(v), radii[0] if radii else 1e-12) for v in data["data"]["norms"]])
    if radii:
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.text(0.5, 0.5, "no rays were evaluated", ha="center", transform=axes.transAxes)
    output = data["rays"].get("output") or "f"
    _finish(axes, f"{data['verdict']}: {data['subject']['name']}", "‖x‖", f"largest |{output}|")
    return axes


def plot_certificate(certificate: Mapping[str, Any], *, ax: Any = None, name: str = "") -> Any:
    """Draw the proved and the attained range of every output, as bars one above the other.

    ``certificate`` is what ``Certificate.to_dict()`` gives; ``ax`` are matplotlib's axes, of a new figure by default.
    """
    data = clean(certificate)
    return _bars(bound_rows(data), ax, clean(name) or f"Bounds of {data['output']}", "attained by some input")


def plot_rollout(rollout: Mapping[str, Any], *, ax: Any = None) -> Any:
    """Draw the box that every state ends in, and what late states of a simulation reached of it.

    ``rollout`` is what ``RolloutCertificate.to_dict()`` gives; ``ax`` matplotlib axes, of a new figure by default.
    """
    data = clean(rollout)
    return _bars(rollout_rows(data), ax, f"Rollout: {data['verdict']}", "reached in a simulation")


def plot_repair(repair: Mapping[str, Any], *, ax: Any = None) -> Any:
    """Draw the model before and after its repair along rays through rows, with the range of the rows shaded.

    ``repair`` is what ``Repair.to_dict()`` gives; ``ax`` are matplotlib's axes, of a new figure by default.
    """
    data, axes = clean(repair), new_axes() if ax is None else ax
    rays = [curve for curve in data["curves"] if curve["kind"] == "ray"]
    for curve in rays:
        for key, color, style in (("before", _ORANGE, "--"), ("after", _BLUE, "-")):
            values = [float(v) for v in curve[key]]
            axes.plot(curve["x"], values, style, color=color, linewidth=1.6, label=_once(axes, key))
    if rays:
        _shade(axes, rays[0]["seen"])
        axes.set_xscale("log")
        known = [abs(v) for c in rays for v in map(float, c["after"]) if math.isfinite(v)]
        # Straight up to what the repaired model gives, by powers of ten beyond.
        axes.set_yscale("symlog", linthresh=10.0 ** math.ceil(math.log10(max(known, default=1.0) or 1.0)))
    else:
        axes.text(
            0.5, 0.5, "no rays: the rows have no real-valued input", ha="center", transform=axes.transAxes
        )
    _finish(axes, f"{data['before']} → {data['after']}", "times the row", "first output")
    return axes


def _bars(rows: Sequence[BoundRow], ax: Any, title: str, met: str) -> Any:
    axes = new_axes() if ax is None else ax
    shown = rows[:_BARS]
    finite = [v for r in shown for v in (r.lower, r.upper, r.low, r.high) if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (-1.0, 1.0)
    room = 0.06 * (high - low) or 1.0
    for k, row in enumerate(shown):
        # An end that was not proved runs out of the picture.
        left = row.lower if math.isfinite(row.lower) else low - 2 * room
        right = row.upper if math.isfinite(row.upper) else high + 2 * room
        proved = {"color": _BLUE, "alpha": 0.25, "label": _once(axes, "proved")}
        axes.barh(k, right - left, left=left, height=0.62, **proved)
        if math.isfinite(row.low) and math.isfinite(row.high):
            # With an edge: a range of almost no width is still seen.
            attained = {"color": _BLUE, "edgecolor": _BLUE, "linewidth": 1.5, "label": _once(axes, met)}
            axes.barh(k, row.high - row.low, left=row.low, height=0.3, **attained)
    axes.set_yticks(range(len(shown)), [row.name for row in shown])
    # The first in the list stands at the top, below a row for the legend.
    axes.set_ylim(max(len(shown), 1) - 0.4, -0.6 - 0.15 * max(len(shown), 2))
    axes.set_xlim(low - room, high + room)
    if not shown:
        axes.text(0.5, 0.5, "there are no bounds to draw", ha="center", transform=axes.transAxes)
    more = f" ({len(rows) - _BARS:,} more not drawn)" if len(rows) > _BARS else ""
    _finish(axes, f"{title}{more}", "value", "", loc="upper left", ncols=2)
    return axes


def _once(axes: Any, label: str) -> str:
    """The label, or what keeps a curve out of the legend where another one has that label."""
    return "_nolegend_" if label in axes.get_legend_handles_labels()[1] else label


def _largest(audit: Mapping[str, Any]) -> float | None:
    """The proved bound on |output| that the rays are those of; None without a proof."""
    drawn = audit["rays"].get("output")
    for verdict in joint_verdicts(audit):
        ends = verdict["growth"]["interval"]
        if verdict["output"] == drawn and verdict["status"] == "bounded" and None not in ends:
            return max(abs(float(end)) for end in ends)
    return None


def _shade(axes: Any, seen: Sequence[float]) -> None:
    axes.axvspan(
        float(seen[0]), float(seen[1]), color=_GRAY, alpha=0.2, linewidth=0, label="where the data are"
    )


def _finish(axes: Any, title: str, x_label: str, y_label: str, **legend: Any) -> None:
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.set_title(title, fontsize=11)
    axes.grid(visible=True, alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9, **legend)
