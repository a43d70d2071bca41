"""Branch and bound over cells of the compactified input.

Holds: values over cells with remainders, a network compiled for them, the search, reading trees back.
May import: certify, certify.affine, errors, gaussian, _budget, _typing.
Never: chooses what to bound.
"""

from __future__ import annotations

from farfield.certify.cells._branch import CellsState, branch
from farfield.certify.cells._compile import CellNetwork, CellsUnsupportedError, compile_cells
from farfield.certify.cells._tree import BrokenProofError, leaves, recheck

__all__ = [
    "BrokenProofError",
    "CellNetwork",
    "CellsState",
    "CellsUnsupportedError",
    "branch",
    "compile_cells",
    "leaves",
    "recheck",
]
