"""What a guard has counted: plain numbers that add up over processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["GuardSummary"]


@dataclass(frozen=True)
class GuardSummary:
    """Rows seen by a guard, and how many lay outside.

    Parameters
    ----------
    rows, outside
        How many rows came, and how many of them had a score above 1.
    worst
        The largest score; ∞ once an input or an answer was not finite.
    not_finite
        Rows with NaN or infinity in their inputs.
    features
        Feature (its column's name, or ``x[:, 2]``) → rows in which it was outside its own range; features that never
        were are left out.

    Examples
    --------
    >>> one = GuardSummary(100, 3, 7.5, 0, {"x[:, 2]": 3})
    >>> both = one + GuardSummary(50, 1, 9.0, 0, {"x[:, 2]": 1})
    >>> both.rows, both.outside, both.worst, both.features
    (150, 4, 9.0, {'x[:, 2]': 4})
    """

    rows: int = 0
    outside: int = 0
    worst: float = 0.0
    not_finite: int = 0
    features: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Outside of all; 0 if nothing was seen."""
        return self.outside / self.rows if self.rows else 0.0

    def __add__(self, other: GuardSummary) -> GuardSummary:
        names = dict.fromkeys([*self.features, *other.features])
        return GuardSummary(
            self.rows + other.rows,
            self.outside + other.outside,
            max(self.worst, other.worst),
            self.not_finite + other.not_finite,
            {name: self.features.get(name, 0) + other.features.get(name, 0) for name in names},
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data; ∞ as text, which JSON has no number for."""
        found = asdict(self)
        return {
            **found,
            "worst": found["worst"] if found["worst"] < float("inf") else "inf",
            "share": self.share,
        }

    def to_prometheus(self, prefix: str = "farfield_guard") -> str:
        """The text that Prometheus reads: counters, and a gauge for the worst score."""
        lines = []
        for name, kind, value in (
            ("rows_total", "counter", self.rows),
            ("outside_total", "counter", self.outside),
            ("not_finite_total", "counter", self.not_finite),
            ("worst_score", "gauge", self.worst),
        ):
            shown = (
                "+Inf" if value == float("inf") else f"{value:g}" if isinstance(value, float) else str(value)
            )
            lines += [f"# TYPE {prefix}_{name} {kind}", f"{prefix}_{name} {shown}"]
        if self.features:
            lines.append(f"# TYPE {prefix}_feature_outside_total counter")
        for feature, count in self.features.items():
            label = feature.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
            lines.append(f'{prefix}_feature_outside_total{{feature="{label}"}} {count}')
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        worst = "∞" if self.worst == float("inf") else f"{self.worst:.3g}"
        named = sorted(self.features.items(), key=lambda item: -item[1])[:5]
        told = ", ".join(f"{name} ({count:,})" for name, count in named)
        return (
            f"{self.outside:,} of {self.rows:,} rows were outside ({self.share:.2%}); the largest score was {worst}."
            + (f" Features outside most often: {told}." if told else "")
        )
