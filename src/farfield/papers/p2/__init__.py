"""P2: activation and normalization drive Gram matrices to the identity; what training leaves of that.

Holds: one module per figure or table.
May import: data, errors, gaussian, geometry, learn, nn, papers, report, _intervals; transformers in one place.
Never: fetches data or weights.
"""

from __future__ import annotations

__all__: list[str] = []
