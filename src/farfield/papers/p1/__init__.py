"""P1: one LayerNorm keeps a network's far field bounded.

Holds: one module per figure or table, what several of them share, and frozen image networks for the one that reads
faces.
May import: certify, data, engine, errors, graph, growth, kernels, learn, nn, ntk, papers, report, _budget,
_intervals; XGBoost and torchvision in one place each.
Never: stores an input.
"""

from __future__ import annotations

__all__: list[str] = []
