"""What is known of fitted networks far from their data."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from farfield._budget import Budget
from farfield.certify import Certificate, UnboundedError, certify
from farfield.errors import InvalidValueError
from farfield.growth import Horizon, analyze, horizon
from farfield.learn._far_field import FarFieldReport, pairs
from farfield.learn._members import Ensemble
from farfield.learn._protected import FarFieldChoice
from farfield.learn._scaling import Array, Scaling
from farfield.learn._sklearn import BaseEstimator, check_is_fitted

__all__ = ["FarAway"]

_ROUNDING = 1e-9
"""By how much of its length a proved interval is widened: certificates speak of real arithmetic, and predictions are
evaluated in float64."""
_CERTIFY_STEPS = 100
"""Steps of the search for each member's bounds, if ``time_budget`` says nothing: the same bounds on any machine."""
_RADII = (1e0, 1e1, 1e2, 1e4, 1e8)
_DIRECTIONS = 64


class FarAway(BaseEstimator):  # type: ignore[misc]
    """Bounds, limits and the report. What a display reads is a result of ``fit`` or takes milliseconds."""

    members_: tuple[nn.Module, ...]
    input_scaling_: Scaling
    n_features_in_: int
    time_budget: float | Budget | None
    _target_range: Array
    _choice: FarFieldChoice | None
    _kind: str
    _verdict: str

    def _forget(self) -> None:
        """Drop what an earlier fit left."""
        for name in ("_certificates", "far_field_report_"):
            self.__dict__.pop(name, None)

    @property
    def module_(self) -> nn.Module:
        """The fitted predictor as one torch module in the units of the data, float64: to audit, certify or export.

        It computes what ``predict`` does (for a classifier: the mean of the members' logits), without the care that
        ``predict`` takes far out: of inputs beyond 1e50, and of torch's LayerNorm where large entries are all but
        equal. ``output_range_`` is about ``predict``.
        """
        check_is_fitted(self, "members_")
        return Ensemble(
            self.members_, self.input_scaling_, self._output_scaling(), self._confident_radius()
        ).eval()

    def _output_scaling(self) -> Scaling | None:
        raise NotImplementedError

    def _confident_radius(self) -> float | None:
        """Beyond it a classifier divides its logits by the distance; None if it never does."""
        return None

    def certificates(self, time_budget: float | Budget | None = None) -> tuple[Certificate, ...]:
        """One for every member, in the network's units: standardized inputs and outputs.

        ``time_budget``: seconds, or a :class:`farfield.Budget`, for all together; that of the estimator by default. A
        larger one gives tighter bounds. The tightest so far are kept for ``output_range_``.

        Raises
        ------
        UnboundedError
            If a member is not bounded: no norm cuts every path.
        """
        check_is_fitted(self, "members_")
        known: tuple[Certificate, ...] | None = self.__dict__.get("_certificates")
        if known is None or time_budget is not None:
            each = _share(self.time_budget if time_budget is None else time_budget, len(self.members_))
            example = torch.zeros(1, self.n_features_in_, dtype=torch.float64)
            earlier = known or (None,) * len(self.members_)
            known = tuple(
                certify(member, (example,), time_budget=each, resume=before)
                for member, before in zip(self.members_, earlier, strict=True)
            )
            self._certificates = known
            self.__dict__.pop("far_field_report_", None)
        return known

    def _prove(self, *, by_construction: bool) -> None:
        """Find the verdict, and the bounds unless a range is built in: the last step of a fit."""
        self._verdict = "BOUNDED"
        if by_construction:
            return
        try:
            self.certificates()
        except UnboundedError:
            example = torch.zeros(1, self.n_features_in_, dtype=torch.float64)
            self._verdict = analyze(self.module_, (example,)).status.name

    def _network_bounds(self) -> Array | None:
        """For every member and output [lower, upper] in the network's units, shape (members, outputs, 2).

        None if nothing was certified.
        """
        found: tuple[Certificate, ...] | None = self.__dict__.get("_certificates")
        if found is None:
            return None
        bounds = np.stack(
            [torch.stack([c.lower.reshape(-1), c.upper.reshape(-1)], -1).double().numpy() for c in found]
        )
        slack = _ROUNDING * (bounds[..., 1:] - bounds[..., :1])
        return np.concatenate([bounds[..., :1] - slack, bounds[..., 1:] + slack], -1)

    def horizon(self, directions: Any = None) -> Horizon:
        """Lim f(λu) as λ → ∞, or its slope, for directions u, shape (m, features), in the units of the data.

        By default along every feature: rows 0, 1, 2, 3, … are +feature 0, −feature 0, +feature 1, …. Takes a second.
        """
        check_is_fitted(self, "members_")
        if directions is None:
            axes = np.eye(self.n_features_in_)
            directions = np.stack([axes, -axes], 1).reshape(-1, self.n_features_in_)
        given = np.asarray(directions, dtype=np.float64)
        if given.ndim != 2 or given.shape[1] != self.n_features_in_:
            raise InvalidValueError(
                f"Directions have shape (m, {self.n_features_in_}), one row each; got {given.shape}."
            )
        return horizon(self.module_, torch.from_numpy(given))

    @cached_property
    def far_field_report_(self) -> FarFieldReport:
        """Verdict, bound, and what was seen along 64 random directions out to 1e8 standard deviations."""
        check_is_fitted(self, "members_")
        u = np.random.default_rng(0).normal(size=(_DIRECTIONS, self.n_features_in_))
        u = u / np.linalg.norm(u, axis=1, keepdims=True)
        seen = []
        for radius in _RADII:
            values = self._far_values(self._away(radius * u))
            seen.append(pairs(np.stack([values.min(0), values.max(0)], -1)))
        slopes = np.zeros(len(seen[0]))
        if self._verdict != "BOUNDED":
            near, far = (self._far_outputs(self._away(_RADII[-1] * s * u)) for s in (1.0, 2.0))
            slopes = np.nan_to_num(np.abs(far - near).max(0) / _RADII[-1], nan=np.inf)
        proof = "" if self._verdict != "BOUNDED" else "construction" if self._built_in() else "certificate"
        return FarFieldReport(
            verdict=self._verdict,
            output_range=pairs(self.output_range_),
            training_range=pairs(self._target_range),
            radii=_RADII,
            seen=tuple(seen),
            largest_slope=tuple(slopes.tolist()),
            directions=_DIRECTIONS,
            proof=proof,
            far_field=self._kind,
            choice=None if self._choice is None else asdict(self._choice),
            said=() if self._choice is None else (str(self._choice),),
            classes=self._class_names(),
        )

    def _away(self, inputs: Array) -> Array:
        """Standardized inputs in the units of the data."""
        return self.input_scaling_.invert(inputs)

    def _built_in(self) -> bool:
        """Whether a range holds by construction."""
        raise NotImplementedError

    def _class_names(self) -> tuple[str, ...]:
        return ()

    def _far_values(self, X: Array) -> Array:
        """Predictions, shape (n, outputs), for an array that needs no checks."""
        raise NotImplementedError

    def _far_outputs(self, X: Array) -> Array:
        """The mean of the members' outputs, in the units of the targets, shape (n, outputs)."""
        raise NotImplementedError

    @property
    def output_range_(self) -> Array:
        """Filled in by regressor and classifier."""
        raise NotImplementedError


def _share(budget: float | Budget | None, members: int) -> Budget:
    """One member's part of a budget."""
    if budget is None:
        return Budget(steps=_CERTIFY_STEPS)
    if not isinstance(budget, Budget):
        return Budget(seconds=float(budget) / members)
    return Budget(*(None if part is None else part / members for part in (budget.seconds, budget.steps)))
