"""The papers' figures and tables as runnable, checked experiments.

Holds: one module per figure or table (claim, settings, run, verdict) and the registry behind ``farfield
reproduce``.
May import: certify, data, engine, errors, gaussian, geometry, graph, growth, kernels, learn, lnnet, nn, ntk, report,
_budget, _intervals, _provenance, _typing.
Never: hard-codes a result it claims to measure.
"""

from __future__ import annotations

from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, run_experiment
from farfield.papers._index import experiment, experiment_names, experiment_titles
from farfield.papers._seeds import ClaimRow, SeedSweep, run_seeds

__all__ = [
    "ClaimRow",
    "ClaimVerdict",
    "Experiment",
    "ExperimentResult",
    "SeedSweep",
    "experiment",
    "experiment_names",
    "experiment_titles",
    "run_experiment",
    "run_seeds",
]
