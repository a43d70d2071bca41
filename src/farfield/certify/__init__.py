"""What a network's value can be, proved.

Holds: bounds for every input, in real arithmetic, rounded outwards; a penalty that trains for them. May import:
growth, graph, nn, gaussian, errors, _typing. Never: renders.
"""

from __future__ import annotations

from farfield.certify._chain import UntrainableBoundError
from farfield.certify._penalty import OutputRangePenalty

__all__ = ["OutputRangePenalty", "UntrainableBoundError"]
