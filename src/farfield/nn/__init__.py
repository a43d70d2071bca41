"""The torch modules the papers need.

Holds: LayerNorm in its two parts, grouped and mean-field norms, activations as modules, a head of known range, the
MLP builder.
May import: errors, gaussian.
Never: trains, analyses or loads anything.
"""

from __future__ import annotations

from farfield.nn._elementwise import Elementwise, activation_module
from farfield.nn._mlp import MLP, MLPSpec, ScaledLinear
from farfield.nn._norms import (
    Center,
    GroupedLayerNorm,
    LayerNorm,
    MeanFieldCenter,
    MeanFieldProject,
    Project,
)
from farfield.nn._range_head import RangeHead

__all__ = [
    "MLP",
    "Center",
    "Elementwise",
    "GroupedLayerNorm",
    "LayerNorm",
    "MLPSpec",
    "MeanFieldCenter",
    "MeanFieldProject",
    "Project",
    "RangeHead",
    "ScaledLinear",
    "activation_module",
]
