"""LayerNorm as a nonlinearity: how much it bends, and networks of linear maps and LayerNorm that fit any labels.

Holds: sums of squares within classes (SSR, LSSR), Hessians of norms and modules, LN-Nets of width three
built for given points or to be trained, and how many points they can label in every way.
May import: engine, errors, nn, _typing.
Never: trains, draws or reads files.
"""

from __future__ import annotations

from farfield.lnnet._capacity import shattering_depth, vc_lower_bound
from farfield.lnnet._construct import construct
from farfield.lnnet._curvature import CurvatureEstimate, curvature, estimate_curvature
from farfield.lnnet._exact import smallest_digits
from farfield.lnnet._network import LNNet
from farfield.lnnet._separation import lssr, ssr
from farfield.lnnet._trainable import trainable

__all__ = [
    "CurvatureEstimate",
    "LNNet",
    "construct",
    "curvature",
    "estimate_curvature",
    "lssr",
    "shattering_depth",
    "smallest_digits",
    "ssr",
    "trainable",
    "vc_lower_bound",
]
