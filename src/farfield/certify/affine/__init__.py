"""A program as affine forms between curves, norms and boxes.

Holds: forms with the rounding they may hide, the step of a node that is affine, the network of blocks.
May import: certify.intervals, errors, graph.
Never: bounds anything.
"""

from __future__ import annotations

from farfield.certify.affine._form import UNIT, Form, affine_step, constant_form, scaled, select_rows
from farfield.certify.affine._network import Block, Network, TooLargeError, build_network, is_curve

__all__ = [
    "UNIT",
    "Block",
    "Form",
    "Network",
    "TooLargeError",
    "affine_step",
    "build_network",
    "constant_form",
    "is_curve",
    "scaled",
    "select_rows",
]
