"""Bounds one can train for: the dual at the live weights of a chain of modules, as a penalty.

Holds: chains of modules, the penalty.
May import: certify, certify.affine, certify.dual, errors, gaussian, graph, nn.
Never: certifies; nothing is rounded outwards here.
"""

from __future__ import annotations

from farfield.certify.training._chain import NormedChain, UntrainableBoundError, parse_chain
from farfield.certify.training._penalty import OutputRangePenalty

__all__ = ["NormedChain", "OutputRangePenalty", "UntrainableBoundError", "parse_chain"]
