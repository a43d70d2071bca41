"""A domain in homogeneous coordinates u = (x, t), t > 0, x/t an input of it: forms uᵀHu ≤ 0, and cells beside it.

This checker's own arithmetic; what the forms are is said in :mod:`farfield.certify._cone`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farfield.certify.checker._values import TINY, Array, CertificateError, MidRad, U, round_up

__all__ = ["DomainCone"]


HALF = MidRad.exact(np.full(1, 0.5))
SUBNORMAL = 2.0**-1070
"""More than a product loses where it is too small for a float64."""


@dataclass(frozen=True)
class DomainCone:
    """The forms of a domain; ``parts`` are its vectors by name, all of one length."""

    kind: str
    parts: Mapping[str, Array]

    @property
    def count(self) -> int:
        """How many forms there are."""
        return len(self.parts["lower"]) if self.kind == "box" else 1

    def quadratic(self, mu: Array) -> MidRad:
        """Σ μ_k H_k."""
        if len(mu) != self.count or (mu < 0).any() or not np.isfinite(mu).all():
            raise CertificateError(f"The domain's forms need {self.count} weights, none of them negative.")
        if self.kind == "halfspace":
            normal, offset = self.parts["normal"], self.parts["offset"][:1]
            return _assembled(
                MidRad.exact(np.zeros_like(normal)),
                MidRad.exact(normal) * MidRad.exact(mu) * HALF,
                MidRad.exact(-offset) * MidRad.exact(mu),
            )
        if self.kind == "box":
            low, high = self.parts["lower"], self.parts["upper"]
            known = np.isfinite(low) & np.isfinite(high)
            if mu[~known].any():
                raise CertificateError("A side of the box without two ends has no form, and no weight.")
            first, second = (MidRad.exact(np.where(known, end, 0.0)) for end in (low, high))
            weight = MidRad.exact(mu)
            return _assembled(
                weight,
                (first + second) * MidRad.exact(-mu) * HALF,
                (first * second * weight).reshape(1, -1) @ _ones(len(mu)),
            )
        center, axes = MidRad.exact(self.parts["center"]), self.parts["axes"]
        if not (axes * axes > 1e-280).all():
            raise CertificateError(
                "An ellipsoid with an axis of no length has no form in homogeneous coordinates."
            )
        share = 1.0 / (axes * axes)
        # Any q ≤ 1/a² is sound: within a few units of it, below.
        q = MidRad(share * (1 - 8 * U), 8 * U * share) * MidRad.exact(np.full(len(axes), float(mu[0])))
        corner = (q * center * center).reshape(1, -1) @ _ones(len(axes)) + MidRad.exact(-mu.reshape(1, 1))
        return _assembled(q, -(q * center), corner)

    def shifted(self, point: Array) -> DomainCone:
        """The cone of the region less a point, and a little more: its ends are rounded outwards."""
        parts = dict(self.parts)
        if self.kind == "halfspace":
            moved = parts["normal"][None] @ point
            size = float(np.abs(parts["normal"]) @ np.abs(point) + np.abs(parts["offset"][0]))
            parts["offset"] = parts["offset"] - moved + (len(point) + 8) * (U * size * (1 + 1e-9) + SUBNORMAL)
        elif self.kind == "box":
            for name, sign in (("lower", -1.0), ("upper", 1.0)):
                parts[name] = parts[name] - point
                parts[name] = parts[name] + sign * 2 * U * np.abs(parts[name])
        else:
            center = parts["center"] - point
            # ‖(x − c)/a‖ ≤ 1 lies in ‖(x − c′)/a′‖ ≤ 1 where every a′ is larger by a share of max |c − c′|/a · √n.
            missed = 2 * U * np.abs(center) / np.maximum(parts["axes"], TINY)
            grown = 1.0 + float(np.sqrt((missed**2).sum())) * (1 + 1e-9) + 4 * U
            parts["center"], parts["axes"] = center, parts["axes"] * grown
        return DomainCone(self.kind, parts)

    def outside(self, start: MidRad, slope: MidRad) -> npt.NDArray[np.bool_]:
        """(cells,): whether no u = start + Σ slope_j δ_j, |δ_j| ≤ 1, is in the domain; (cells, n + 1), (axes, …)."""
        x, t = start[..., :-1], start[..., -1:]
        dx, dt = slope[..., :-1], slope[..., -1:]
        if self.kind == "halfspace":
            normal, offset = (MidRad.exact(self.parts[k].reshape(-1, 1)) for k in ("normal", "offset"))
            over = x @ normal + -(t * offset[:1].reshape(1, 1))
            turn = dx @ normal + -(dt * offset[:1].reshape(1, 1, 1))
            made: npt.NDArray[np.bool_] = (_least(over, turn) > 0)[:, 0]
            return made
        if self.kind == "box":
            found = np.zeros(len(t.mid), dtype=bool)
            for name, sign in (("upper", 1.0), ("lower", -1.0)):
                end = self.parts[name]
                finite = MidRad.exact(np.where(np.isfinite(end), end, 0.0))
                side = MidRad.exact(np.full(1, sign))
                over = (x + -(t * finite[None])) * side
                turn = (dx + -(dt * finite[None, None])) * side
                found |= ((_least(over, turn) > 0) & np.isfinite(end)).any(1)
            return found
        center = MidRad.exact(self.parts["center"])
        over, turn = x + -(t * center[None]), dx + -(dt * center[None, None])
        swing = round_up((np.abs(turn.mid) + turn.rad).sum(0) + over.rad)
        away = np.maximum(0.0, np.abs(over.mid) - swing) * (1 - 8 * U)
        late = round_up(np.abs(t.mid) + t.rad + (np.abs(dt.mid) + dt.rad).sum(0))[:, 0]
        axes = self.parts["axes"]
        shares = np.where(axes > 0, away / np.where(axes > 0, axes, 1.0), np.where(away > 0, np.inf, 0.0))
        total: npt.NDArray[np.bool_] = (shares**2).sum(1) * (1 - (len(axes) + 16) * U) > late**2 * (1 + 8 * U)
        return total


def _least(over: MidRad, turn: MidRad) -> Array:
    """The least of over + Σ turn_j δ_j, rounded down."""
    swing = round_up((np.abs(turn.mid) + turn.rad).sum(0) + over.rad)
    least: Array = over.mid - swing - 4 * U * (np.abs(over.mid) + swing)
    return least


def _ones(count: int) -> MidRad:
    return MidRad.exact(np.ones((count, 1)))


def _assembled(diagonal: MidRad, column: MidRad, corner: MidRad) -> MidRad:
    size = len(diagonal.mid) + 1
    mid, rad = np.zeros((2, size, size))
    for made, part in ((mid, "mid"), (rad, "rad")):
        made[:-1, :-1] = np.diag(getattr(diagonal, part))
        made[:-1, -1] = made[-1, :-1] = getattr(column, part)
        made[-1, -1] = getattr(corner, part).reshape(-1)[0]
    return MidRad(mid, rad)
