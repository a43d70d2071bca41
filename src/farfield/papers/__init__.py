"""The papers' figures and tables as runnable, checked experiments.

Holds: one module per figure or table (claim, settings, run, verdict) and the registry behind ``farfield
reproduce``. May import: everything below. Never: hard-codes a result it claims to measure.
"""

from __future__ import annotations

from farfield.papers._experiment import Experiment, Outcome, Verdict, run_experiment
from farfield.papers._index import experiment, experiment_names, experiment_titles

__all__ = [
    "Experiment",
    "Outcome",
    "Verdict",
    "experiment",
    "experiment_names",
    "experiment_titles",
    "run_experiment",
]
