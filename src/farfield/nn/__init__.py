"""The torch modules the papers need.

Holds: LayerNorm in its two parts, grouped and mean-field norms, LN-G put into a model that exists, activations as
modules, protections that are the identity where data were seen (FeatureClamp, NormCap, RangeHead), the MLP builder.
May import: errors, gaussian.
Never: trains, analyses or loads anything.
"""

from __future__ import annotations

from farfield.nn._elementwise import Elementwise, activation_module
from farfield.nn._feature_clamp import FeatureClamp
from farfield.nn._mlp import MLP, MLPSpec, ScaledLinear
from farfield.nn._norm_cap import NormCap
from farfield.nn._norms import (
    Center,
    GroupedChannelNorm,
    GroupedLayerNorm,
    LayerNorm,
    MeanFieldCenter,
    MeanFieldProject,
    Project,
)
from farfield.nn._range_head import RangeHead
from farfield.nn._to_grouped import to_grouped

__all__ = [
    "MLP",
    "Center",
    "Elementwise",
    "FeatureClamp",
    "GroupedChannelNorm",
    "GroupedLayerNorm",
    "LayerNorm",
    "MLPSpec",
    "MeanFieldCenter",
    "MeanFieldProject",
    "NormCap",
    "Project",
    "RangeHead",
    "ScaledLinear",
    "activation_module",
    "to_grouped",
]
