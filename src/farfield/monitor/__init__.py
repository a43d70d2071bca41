"""Watch a model in use and in training.

Holds: ``guard`` (a model that says with every answer how far outside its calibration rows the question was) and what
it counts; ``record_isometry`` (how far apart the layers keep rows); ``FarFieldMonitor``, ``IsometryMonitor``,
``TangentMonitor`` (where a model in training is heading), and ``watch``, which puts them on a training loop. In
``lightning``, ``transformers`` and ``stable_baselines3`` the callbacks of those libraries.
May import: calibration, certify, errors, geometry, graph, growth, nn, ntk.
Never: decides what an input means; it knows ranges, sizes and directions.
"""

from __future__ import annotations

from farfield.monitor._far_field import FarFieldMonitor
from farfield.monitor._guard import Guard, guard
from farfield.monitor._isometry import IsometryMonitor, record_isometry
from farfield.monitor._limits import Excess
from farfield.monitor._looks import Monitor
from farfield.monitor._summary import GuardSummary
from farfield.monitor._tangent import TangentMonitor
from farfield.monitor._watch import TrainingRecord, watch

__all__ = [
    "Excess",
    "FarFieldMonitor",
    "Guard",
    "GuardSummary",
    "IsometryMonitor",
    "Monitor",
    "TangentMonitor",
    "TrainingRecord",
    "guard",
    "record_isometry",
    "watch",
]
