"""P1: one LayerNorm keeps a network's far field bounded.

Holds: one module per figure or table, and what several of them share. May import: everything below papers, and
XGBoost in one place. Never: keeps a dataset of its own.
"""

from __future__ import annotations

__all__: list[str] = []
