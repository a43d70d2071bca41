"""P1: one LayerNorm keeps a network's far field bounded.

Holds: one module per figure or table. May import: everything below papers. Never: fetches data or keeps a trained
network.
"""

from __future__ import annotations

__all__: list[str] = []
