"""What each node of a model does as ‖x‖ → ∞: verdicts, escape paths, horizons.

Holds: sided growth rates and their rules, escape paths and cuts, jets at infinity and the horizon, witnesses
of unboundedness, verdicts.
May import: errors, gaussian, graph.
Never: promises a number for every input (that is certify's), renders a report, or changes a model.
"""

from __future__ import annotations

from farfield.growth import _extent as extents
from farfield.growth import rules as rules
from farfield.growth._analysis import Analysis, analyse_growth
from farfield.growth._extent import Extent, Reason
from farfield.growth._growth import Growth, Kind
from farfield.growth._horizon import Horizon, horizon
from farfield.growth._jet import Jet
from farfield.growth._paths import (
    Cut,
    EscapePath,
    bounding_cut,
    escape_path,
    escape_paths,
    insertion_cut,
)
from farfield.growth._rate import Rate
from farfield.growth._registry import (
    Site,
    growth_rule_names,
    register_growth_rule,
    unregister_growth_rule,
)
from farfield.growth._step import Step, jet_rule_names, register_jet_rule
from farfield.growth._verdict import GrowthReport, Status, Verdict, analyse
from farfield.growth._witness import Evidence, Witness, find_witness

__all__ = [
    "Analysis",
    "Cut",
    "EscapePath",
    "Evidence",
    "Extent",
    "Growth",
    "GrowthReport",
    "Horizon",
    "Jet",
    "Kind",
    "Rate",
    "Reason",
    "Site",
    "Status",
    "Step",
    "Verdict",
    "Witness",
    "analyse",
    "analyse_growth",
    "bounding_cut",
    "escape_path",
    "escape_paths",
    "extents",
    "find_witness",
    "growth_rule_names",
    "horizon",
    "insertion_cut",
    "jet_rule_names",
    "register_growth_rule",
    "register_jet_rule",
    "unregister_growth_rule",
]
