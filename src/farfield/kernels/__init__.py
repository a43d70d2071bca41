"""Networks of infinite width: NNGP and NTK kernels.

Holds: the kernel state, layers that map it, networks of them, one-angle tables, the supremum of the diagonal.
May import: engine, errors, gaussian, nn, _typing.
Never: solves with a kernel, or draws anything at random.
"""

from __future__ import annotations

from farfield.kernels._from_module import from_module
from farfield.kernels._layers import Activate, Dense, Identity, Layer, LayerNorm, Residual, RMSNorm
from farfield.kernels._mlp import mlp
from farfield.kernels._network import KernelFunction, NetworkKernel
from farfield.kernels._program import KernelKind
from farfield.kernels._state import KernelState
from farfield.kernels._supremum import sup_diagonal
from farfield.kernels._table import Interpolant

__all__ = [
    "Activate",
    "Dense",
    "Identity",
    "Interpolant",
    "KernelFunction",
    "KernelKind",
    "KernelState",
    "Layer",
    "LayerNorm",
    "NetworkKernel",
    "RMSNorm",
    "Residual",
    "from_module",
    "mlp",
    "sup_diagonal",
]
