"""Every node of a program between two tensors.

Holds: intervals entry by entry, rounded outwards; a rule per operator; their propagation through a program.
May import: errors, gaussian, graph, growth, _typing.
Never: relates one entry to another, optimizes a bound, renders.
"""

from __future__ import annotations

from farfield.certify.intervals import rules as _rules
from farfield.certify.intervals._interval import Interval
from farfield.certify.intervals._propagate import propagate
from farfield.certify.intervals._registry import (
    Place,
    UnboundableError,
    interval_rule,
    interval_rule_names,
    register_interval_rule,
    unregister_interval_rule,
)

__all__ = [
    "Interval",
    "Place",
    "UnboundableError",
    "interval_rule",
    "interval_rule_names",
    "propagate",
    "register_interval_rule",
    "unregister_interval_rule",
]

_ = _rules  # importing the families registers them
