"""Networks of finite width: the empirical tangent kernel of any module.

Holds: the kernel by several independent methods under a memory budget, products with it, its parts by parameter.
May import: engine, nn, gaussian, geometry, errors, _typing. Never: trains, or knows a kernel of infinite width.
"""

from __future__ import annotations

from farfield.ntk._empirical import (
    MethodChoice,
    choose_method,
    empirical_ntk,
    layer_contributions,
    sketch_ntk,
)
from farfield.ntk._products import NTKOperator
from farfield.ntk._sketch import Sketch

__all__ = [
    "MethodChoice",
    "NTKOperator",
    "Sketch",
    "choose_method",
    "empirical_ntk",
    "layer_contributions",
    "sketch_ntk",
]
