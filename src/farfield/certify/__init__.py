"""What a network's value can be, proved.

Holds: bounds for every input, in real arithmetic, rounded outwards. May import: growth, graph, gaussian, errors,
_typing. Never: renders.
"""

from __future__ import annotations

__all__: list[str] = []
