"""Watch a model in use and in training.

Holds: ``guard`` (a model that says with every answer how far outside its calibration rows the question was) and what
it counts; ``FarFieldMonitor`` (where the far field of a model in training is heading).
May import: calibration, certify, errors, growth, nn.
Never: decides what an input means; it knows ranges, sizes and directions.
"""

from __future__ import annotations

from farfield.monitor._far_field import FarFieldMonitor
from farfield.monitor._guard import Guard, guard
from farfield.monitor._limits import Excess
from farfield.monitor._summary import GuardSummary

__all__ = ["Excess", "FarFieldMonitor", "Guard", "GuardSummary", "guard"]
