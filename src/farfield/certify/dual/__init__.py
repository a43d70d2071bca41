"""The quadratic Lagrangian dual of a network's output behind its last norms.

Holds: the maximization problem, the dual function, the search for multipliers, the proof with every rounding.
May import: certify, certify.affine, errors, gaussian, _budget.
Never: chooses what to bound.
"""

from __future__ import annotations

from farfield.certify.dual._assembly import NoProblemError, build_problem, homogeneous_source
from farfield.certify.dual._descent import initial_multipliers, optimize, step_seconds
from farfield.certify.dual._dual import Dual, Multipliers, Objective, objective
from farfield.certify.dual._groups import (
    GroupDual,
    Objectives,
    can_group,
    grid_points,
    search_groups,
    single_multipliers,
)
from farfield.certify.dual._layers import LayerSearch, layer_costs, subproblem, tightened
from farfield.certify.dual._nested import Anchor, Nested, find_anchor, nest, optimize_nested
from farfield.certify.dual._payload import publish, publish_nested, restore, restore_nested
from farfield.certify.dual._problem import Ball, Box, Curve, Problem
from farfield.certify.dual._prove import ProvedValue, prove

__all__ = [
    "Anchor",
    "Ball",
    "Box",
    "Curve",
    "Dual",
    "GroupDual",
    "LayerSearch",
    "Multipliers",
    "Nested",
    "NoProblemError",
    "Objective",
    "Objectives",
    "Problem",
    "ProvedValue",
    "build_problem",
    "can_group",
    "find_anchor",
    "grid_points",
    "homogeneous_source",
    "initial_multipliers",
    "layer_costs",
    "nest",
    "objective",
    "optimize",
    "optimize_nested",
    "prove",
    "publish",
    "publish_nested",
    "restore",
    "restore_nested",
    "search_groups",
    "single_multipliers",
    "step_seconds",
    "subproblem",
    "tightened",
]
