"""Coordinates in which a search moves the multipliers of a dual.

A curve's slopes r reach the layers before it through s. At a point x₀ (:meth:`Problem.reference`), where a curve has
the argument z₀ and the value y₀, the joint part falls in y by s + 2T·y₀ + E·z₀ less what the later curves pull at y
with their R = r + 2Θ·z₀ − E·y₀. The search moves R and d, s = pull + d − E·z₀ − 2T·y₀, so that a change of one
layer's slopes reaches the layers before it at once; boxes have a d of their own. Positive multipliers move by
factors, E in units of T: for a ReLU y² = yz costs nothing, and E = −T keeps paying for it as T grows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from farfield.certify.dual._dual import Dual, Multipliers

__all__ = ["Coordinates", "Raw"]

LEAST = 1e-12
"""What moves by factors begins no lower."""
Raw = dict[str, Tensor]
"""``theta{i}, R{i}`` per curve i, ``t{i}, e{i}, d{i}`` where y is a variable, ``bt{j}, bd{j}`` per box, and
``kappa``, ``omega``, ``room``; ``n`` where products are searched."""


class Coordinates:
    """The map between multipliers and coordinates whose natural steps are all of one size.

    Parameters
    ----------
    dual
        Whose multipliers they are.
    around
        Multipliers that say what a natural step is.
    """

    def __init__(self, dual: Dual, around: Multipliers) -> None:
        self.dual = dual
        problem = dual.problem
        self.slope_units = [self._slope(around, i).abs().mean() + LEAST for i in range(len(problem.curves))]
        self.box_units = [around[f"bs{j}"].abs().mean() + LEAST for j in range(len(problem.boxes))]
        heads = around["kappa"].mean().reshape(1) if problem.balls else torch.ones(1, dtype=dual.dtype)
        weights = [heads.expand(dual.heads), *(around[f"t{i}"] for i, *_ in dual.groups)]
        root = torch.cat(weights).clamp_min(LEAST).sqrt()
        self.product_units = torch.outer(root, root)

    def raw(self, m: Multipliers, products: bool) -> Raw:
        """The coordinates of multipliers; of their products too if these are searched."""
        problem = self.dual.problem
        made: Raw = {name: m[name].clamp_min(LEAST).log() for name in ("kappa", "omega", "room")}
        pull = self.dual.goal.linear
        for i in range(len(problem.curves) - 1, -1, -1):
            curve, theta = problem.curves[i], m[f"theta{i}"].clamp_min(LEAST)
            made[f"theta{i}"] = theta.log()
            if curve.columns is not None:
                t = m[f"t{i}"].clamp_min(LEAST)
                own = m[f"s{i}"] - pull[curve.columns] + m[f"e{i}"] * self.dual.start_arguments[i]
                own = own + 2 * t * self.dual.start[curve.columns]
                made[f"t{i}"], made[f"e{i}"], made[f"d{i}"] = (
                    t.log(),
                    m[f"e{i}"] / t,
                    own / self.slope_units[i],
                )
            slope = self._slope({**m, f"theta{i}": theta}, i)
            made[f"R{i}"] = slope / self.slope_units[i]
            pull = self._pulled(pull, i, slope)
        for j, box in enumerate(problem.boxes):
            made[f"bt{j}"] = m[f"bt{j}"].clamp_min(LEAST).log()
            own = m[f"bs{j}"] - pull[box.columns] + 2 * m[f"bt{j}"] * self.dual.start[box.columns]
            made[f"bd{j}"] = own / self.box_units[j]
        if products:
            made["n"] = m["n"] / self.product_units
        return made

    def multipliers(self, raw: Raw) -> Multipliers:
        """The multipliers at coordinates; without ``n`` where products are not searched."""
        problem = self.dual.problem
        made: Multipliers = {name: raw[name].exp() for name in ("kappa", "omega", "room")}
        pull = self.dual.goal.linear
        for i in range(len(problem.curves) - 1, -1, -1):
            curve = problem.curves[i]
            made[f"theta{i}"] = raw[f"theta{i}"].exp()
            if curve.columns is not None:
                t = made[f"t{i}"] = raw[f"t{i}"].exp()
                e = made[f"e{i}"] = raw[f"e{i}"] * t
                y = self.dual.start[curve.columns]
                own = self.slope_units[i] * raw[f"d{i}"] - e * self.dual.start_arguments[i] - 2 * t * y
                made[f"s{i}"] = pull[curve.columns] + own
            slope = self.slope_units[i] * raw[f"R{i}"]
            made[f"r{i}"] = slope - self._slope({**made, f"r{i}": torch.zeros_like(slope)}, i)
            pull = self._pulled(pull, i, slope)
        for j, box in enumerate(problem.boxes):
            made[f"bt{j}"] = raw[f"bt{j}"].exp()
            own = self.box_units[j] * raw[f"bd{j}"] - 2 * made[f"bt{j}"] * self.dual.start[box.columns]
            made[f"bs{j}"] = pull[box.columns] + own
        if "n" in raw:
            made["n"] = raw["n"] * self.product_units
        return made

    def slopes(self, raw: Raw, m: Multipliers, steep: Multipliers) -> Raw:
        """Derivatives in the coordinates from those in the multipliers there."""
        problem = self.dual.problem
        made: Raw = {name: m[name] * steep[name] for name in ("kappa", "omega", "room")}
        at_variables = torch.zeros(problem.size, dtype=self.dual.dtype)  # ∂/∂(what is pulled)
        for j, box in enumerate(problem.boxes):
            at_variables[box.columns] = steep[f"bs{j}"]
            at = self.dual.start[box.columns]
            made[f"bt{j}"] = m[f"bt{j}"] * (steep[f"bt{j}"] - 2 * at * steep[f"bs{j}"])
            made[f"bd{j}"] = self.box_units[j] * steep[f"bs{j}"]
        for i, curve in enumerate(problem.curves):
            r, z = steep[f"r{i}"], self.dual.start_arguments[i]
            if curve.columns is not None:
                s, y = steep[f"s{i}"], self.dual.start[curve.columns]
                mixed = steep[f"e{i}"] - s * z + r * y
                at_variables[curve.columns] = s
                made[f"t{i}"] = m[f"t{i}"] * (steep[f"t{i}"] - 2 * s * y + raw[f"e{i}"] * mixed)
                made[f"e{i}"], made[f"d{i}"] = m[f"t{i}"] * mixed, self.slope_units[i] * s
            made[f"theta{i}"] = m[f"theta{i}"] * (steep[f"theta{i}"] - 2 * r * z)
            through = self.dual.compact[i] @ at_variables[self.dual.spans[i]]
            made[f"R{i}"] = self.slope_units[i] * (r + through)
        if "n" in raw:
            made["n"] = steep["n"] * self.product_units
        return made

    def _slope(self, m: Multipliers, i: int) -> Tensor:
        """R of a curve."""
        slope, columns = (
            m[f"r{i}"] + 2 * m[f"theta{i}"] * self.dual.start_arguments[i],
            self.dual.problem.curves[i].columns,
        )
        return slope if columns is None else slope - m[f"e{i}"] * self.dual.start[columns]

    def _pulled(self, pull: Tensor, i: int, slope: Tensor) -> Tensor:
        """What is linear in the variables, with a curve's slopes added."""
        made = pull.clone()
        made[self.dual.spans[i]] += slope @ self.dual.compact[i]
        return made
