"""P1: one LayerNorm keeps a network's far field bounded.

Holds: one module per figure or table that needs neither training nor data. May import: everything below papers.
Never: reads data.
"""

from __future__ import annotations

__all__: list[str] = []
