"""Networks of finite width: the empirical tangent kernel of any module.

Holds: the kernel by several independent methods under a memory budget, products with it, its parts by parameter, its
spectrum, what it predicts.
May import: engine, errors, geometry.
Never: trains, or knows a kernel of infinite width.
"""

from __future__ import annotations

from farfield.ntk._empirical import (
    MethodChoice,
    choose_method,
    empirical_ntk,
    layer_contributions,
    sketch_ntk,
)
from farfield.ntk._linearized import linearized_prediction
from farfield.ntk._products import NTKOperator
from farfield.ntk._sketch import Sketch
from farfield.ntk._spectrum import (
    ExtremeEigenvalues,
    KernelSpectrum,
    alignment,
    extreme_eigenvalues,
    kernel_distance,
    spectrum,
)

__all__ = [
    "ExtremeEigenvalues",
    "KernelSpectrum",
    "MethodChoice",
    "NTKOperator",
    "Sketch",
    "alignment",
    "choose_method",
    "empirical_ntk",
    "extreme_eigenvalues",
    "kernel_distance",
    "layer_contributions",
    "linearized_prediction",
    "sketch_ntk",
    "spectrum",
]
