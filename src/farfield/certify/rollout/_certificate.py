"""What is proved of a rollout: a set no state leaves, a drift, or a state that escapes."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield._regular_file import read_json
from farfield.certify._certificate import Certificate
from farfield.errors import InvalidValueError

__all__ = ["FORMAT", "RolloutCertificate", "RolloutVerdict"]

FORMAT = "farfield-rollout/1"
_TENSORS = (
    "lower",
    "upper",
    "attractor_lower",
    "attractor_upper",
    "drift",
    "linear",
    "attained_lower",
    "attained_upper",
)


class RolloutVerdict(enum.StrEnum):
    """What happens to a state that is fed back for ever."""

    INVARIANT = "INVARIANT"
    DRIFTS = "DRIFTS"
    ESCAPES = "ESCAPES"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, eq=False)
class RolloutCertificate:
    """What is proved of x ↦ A·x + g(x, u), iterated.

    Parameters
    ----------
    verdict
        ``INVARIANT``: there is a box that every state is in from some step on, whatever the start; or, where a step
        averages the state with something bounded, one that no state leaves (and no larger one). ``DRIFTS``: the
        state is carried over whole, and each step moves it by at most ``drift``. ``ESCAPES``: a start was found from
        which it grows (run in float64, not proved). ``UNKNOWN``: ``reason`` says why.
    reason
        One or two sentences.
    lower, upper
        Of an invariant rollout, shaped like the state. Where the step replaces the state (A = 0), every state is in
        this box after one step. Otherwise a state that is in the attractor's box once stays in this one. Where it
        averages, a state that is in this box stays in it, and any other in a box that holds this one and its start.
    attractor_lower, attractor_upper
        The smaller box that every state is in from some step on; see :meth:`steps_until`. ``None`` where it averages.
    drift
        Of a rollout that drifts: |x⁺ − x| is at most this, entry by entry.
    linear
        A, over the flattened state.
    rest
        Certificates of g: for every state, and over the boxes that were found with it, each smaller than the one
        before.
    attained_lower, attained_upper
        What late states of a simulation reached: how much of the attractor's box is needed.
    witness
        Of a rollout that escapes: ``{"state": [...], "steps": k, "size": largest entry then}``.
    contraction
        (steps, factor): ‖A^steps‖∞ ≤ factor.
    assumptions
        What all this rests on.
    model_hash
        Of the step's program.
    seconds
        Time spent.
    """

    verdict: RolloutVerdict
    reason: str
    linear: Tensor
    lower: Tensor | None = None
    upper: Tensor | None = None
    attractor_lower: Tensor | None = None
    attractor_upper: Tensor | None = None
    drift: Tensor | None = None
    attained_lower: Tensor | None = None
    attained_upper: Tensor | None = None
    rest: tuple[Certificate, ...] = ()
    witness: Mapping[str, Any] = field(default_factory=dict)
    contraction: tuple[int, float] | None = None
    assumptions: tuple[str, ...] = ()
    model_hash: str = ""
    seconds: float = 0.0

    def steps_until(self, radius: float) -> int:
        """Steps after which every state that began with entries of at most ``radius`` is in the attractor's box.

        From |xₖ − c| ≤ |Aᵏ|·|x₀ − c| + w with the box c ± w′, w′ a little wider than w: the powers' own decay. Where
        the step replaces the state, the number of boxes that were found one in the other.
        """
        if self.verdict is not RolloutVerdict.INVARIANT or self.contraction is None:
            ends = "keeps to boxes that hold its start" if self.lower is not None else self.verdict.lower()
            raise InvalidValueError(f"Only a rollout that contracts ends in a box; this one {ends}.")
        assert self.attractor_lower is not None
        assert self.attractor_upper is not None
        assert self.lower is not None
        assert self.upper is not None
        rounds = len(self.rest)
        if not bool(self.linear.any()):
            return rounds
        steps, factor = self.contraction
        room = WIDENED * float((self.attractor_upper - self.attractor_lower).min()) / 4
        start = float(radius) + 2 * float(torch.maximum(self.lower.abs(), self.upper.abs()).max())
        needed = max(1, math.ceil(math.log(max(start / room, 1.0)) / -math.log(max(factor, 1e-300))))
        return rounds * needed * steps

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        made: dict[str, Any] = {"format": FORMAT, "verdict": self.verdict.value, "reason": self.reason}
        for name in _TENSORS:
            value = getattr(self, name)
            made[name] = (
                None if value is None else {"shape": list(value.shape), "entries": value.reshape(-1).tolist()}
            )
        return {
            **made,
            "rest": [one.to_dict() for one in self.rest],
            "witness": dict(self.witness),
            "contraction": None if self.contraction is None else list(self.contraction),
            "assumptions": list(self.assumptions),
            "model_hash": self.model_hash,
            "seconds": self.seconds,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RolloutCertificate:
        """Read what :meth:`to_dict` wrote."""
        if data.get("format") != FORMAT:
            raise InvalidValueError(
                f"This is no rollout certificate: its format is {data.get('format')!r}, not {FORMAT!r}."
            )
        tensors = {
            name: None
            if data[name] is None
            else torch.tensor(data[name]["entries"], dtype=torch.float64).reshape(data[name]["shape"])
            for name in _TENSORS
        }
        linear = tensors.pop("linear")
        assert linear is not None
        pair = data["contraction"]
        return cls(
            RolloutVerdict(data["verdict"]),
            str(data["reason"]),
            linear,
            **tensors,
            rest=tuple(Certificate.from_dict(one) for one in data["rest"]),
            witness=dict(data["witness"]),
            contraction=None if pair is None else (int(pair[0]), float(pair[1])),
            assumptions=tuple(data["assumptions"]),
            model_hash=str(data["model_hash"]),
            seconds=float(data["seconds"]),
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write a JSON file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> RolloutCertificate:
        """Read a JSON file."""
        return cls.from_dict(read_json(path))

    def _repr_html_(self) -> str:
        from farfield.report import rollout_summary

        return rollout_summary(self._with_words())

    def to_html(self, *, name: str = "") -> str:
        """One page that loads nothing: the verdict, the box that states end in, what it assumes.

        Parameters
        ----------
        name
            What to call the step.
        """
        from farfield.report import render_rollout

        return render_rollout(self._with_words(), name=name)

    def plot(self, *, ax: Any = None) -> Any:
        """Draw the box that every state ends in, and what a simulation reached of it; needs ``farfield[plot]``.

        Parameters
        ----------
        ax
            matplotlib axes to draw on; those of a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes
        """
        from farfield.report import plot_rollout

        return plot_rollout(self.to_dict(), ax=ax)

    def _with_words(self) -> dict[str, Any]:
        return {**self.to_dict(), "said": str(self).splitlines()}

    def __str__(self) -> str:
        lines = [f"{self.verdict.value}. {self.reason}"]
        if self.attractor_lower is not None and self.attractor_upper is not None:
            lines.append(
                f"From some step on every state is in {_span(self.attractor_lower, self.attractor_upper)}."
            )
        elif self.lower is not None and self.upper is not None:
            lines.append(f"A state in {_span(self.lower, self.upper)} stays there.")
        if self.attained_lower is not None and self.attained_upper is not None:
            lines.append(
                f"Late states of a simulation filled {_span(self.attained_lower, self.attained_upper)}."
            )
        if self.drift is not None:
            lines.append(f"A step moves an entry of the state by at most {float(self.drift.max()):.4g}.")
        if self.witness:
            lines.append(
                f"After {self.witness['steps']} steps from the witness, an entry has size {self.witness['size']:.3g}."
            )
        proved = self.verdict in (RolloutVerdict.INVARIANT, RolloutVerdict.DRIFTS)
        end = "Proved for every real input. " if proved else ""
        return "\n".join([*lines, f"{end}A bound is not a claim of accuracy."])


WIDENED = 1e-9
"""By this share of its half widths an attractor's box is wider than what the states tend to."""


def _span(low: Tensor, high: Tensor) -> str:
    return f"[{float(low.min()):.4g}, {float(high.max()):.4g}] (entries at most {float((high - low).max()):.4g} wide)"
