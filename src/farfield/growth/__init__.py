"""What each node of a model does as ‖x‖ → ∞: verdicts, escape paths, horizons.

Holds: sided growth rates and their rules, escape paths and cuts, jets at infinity and the horizon, witnesses
of unboundedness, verdicts.
May import: errors, gaussian, graph.
Never: promises a number for every input (that is certify's), renders a report, or changes a model.
"""

from __future__ import annotations

from farfield.growth import _extent as extents
from farfield.growth._growth import Growth, Kind
from farfield.growth._horizon import Horizon, horizon
from farfield.growth._registry import register_growth_rule
from farfield.growth._step import register_jet_rule
from farfield.growth._verdict import GrowthReport, Status, Verdict, analyze
from farfield.growth._witness import Witness

__all__ = [
    "Growth",
    "GrowthReport",
    "Horizon",
    "Kind",
    "Status",
    "Verdict",
    "Witness",
    "analyze",
    "extents",
    "horizon",
    "register_growth_rule",
    "register_jet_rule",
]
