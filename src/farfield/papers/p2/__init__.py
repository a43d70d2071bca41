"""P2: activation and normalisation drive Gram matrices to the identity, at initialisation.

Holds: one module per figure or table that needs no training. May import: everything below papers.
Never: reads data.
"""

from __future__ import annotations

__all__: list[str] = []
