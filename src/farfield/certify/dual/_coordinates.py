"""Coordinates in which a search moves the multipliers of a dual.

A curve's slopes r reach the layers before it through s: with R = r + 2Θ·offset, what is linear in y is
(what R of the later curves pulls at y) − s − E·offset. The search moves R and d, s = pull + d − E·offset, so that a
change of one layer's slopes reaches the layers before it at once; boxes have a d of their own. Positive multipliers
move by factors, E in units of T: for a ReLU y² = yz costs nothing, and E = −T keeps paying for it as T grows.
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
        self.slope_units = [
            (around[f"r{i}"] + 2 * around[f"theta{i}"] * c.offset).abs().mean() + LEAST
            for i, c in enumerate(problem.curves)
        ]
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
                own = m[f"s{i}"] - pull[curve.columns] + m[f"e{i}"] * curve.offset
                made[f"t{i}"], made[f"e{i}"], made[f"d{i}"] = (
                    t.log(),
                    m[f"e{i}"] / t,
                    own / self.slope_units[i],
                )
            slope = m[f"r{i}"] + 2 * theta * curve.offset
            made[f"R{i}"] = slope / self.slope_units[i]
            pull = self._pulled(pull, i, slope)
        for j, box in enumerate(problem.boxes):
            made[f"bt{j}"] = m[f"bt{j}"].clamp_min(LEAST).log()
            made[f"bd{j}"] = (m[f"bs{j}"] - pull[box.columns]) / self.box_units[j]
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
            theta = made[f"theta{i}"] = raw[f"theta{i}"].exp()
            if curve.columns is not None:
                t = made[f"t{i}"] = raw[f"t{i}"].exp()
                e = made[f"e{i}"] = raw[f"e{i}"] * t
                made[f"s{i}"] = pull[curve.columns] + self.slope_units[i] * raw[f"d{i}"] - e * curve.offset
            slope = self.slope_units[i] * raw[f"R{i}"]
            made[f"r{i}"] = slope - 2 * theta * curve.offset
            pull = self._pulled(pull, i, slope)
        for j, box in enumerate(problem.boxes):
            made[f"bt{j}"] = raw[f"bt{j}"].exp()
            made[f"bs{j}"] = pull[box.columns] + self.box_units[j] * raw[f"bd{j}"]
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
            made[f"bt{j}"] = m[f"bt{j}"] * steep[f"bt{j}"]
            made[f"bd{j}"] = self.box_units[j] * steep[f"bs{j}"]
        for i, curve in enumerate(problem.curves):
            if curve.columns is not None:
                s = steep[f"s{i}"]
                mixed = steep[f"e{i}"] - s * curve.offset
                at_variables[curve.columns] = s
                made[f"t{i}"] = m[f"t{i}"] * (steep[f"t{i}"] + raw[f"e{i}"] * mixed)
                made[f"e{i}"], made[f"d{i}"] = m[f"t{i}"] * mixed, self.slope_units[i] * s
            r = steep[f"r{i}"]
            made[f"theta{i}"] = m[f"theta{i}"] * (steep[f"theta{i}"] - 2 * r * curve.offset)
            through = self.dual.compact[i] @ at_variables[self.dual.spans[i]]
            made[f"R{i}"] = self.slope_units[i] * (r + through)
        if "n" in raw:
            made["n"] = steep["n"] * self.product_units
        return made

    def _pulled(self, pull: Tensor, i: int, slope: Tensor) -> Tensor:
        """What is linear in the variables, with a curve's slopes added."""
        made = pull.clone()
        made[self.dual.spans[i]] += slope @ self.dual.compact[i]
        return made
