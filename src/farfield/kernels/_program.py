"""How a network's kernel is computed: where it is cut, and what a tile needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from farfield.engine import Tile
from farfield.errors import InvalidValueError
from farfield.kernels._inputs import Rows, angles
from farfield.kernels._layers import Activate, Dense, Identity, Layer, LayerNorm, RMSNorm
from farfield.kernels._state import KernelState
from farfield.kernels._table import Interpolant

_LARGE = 2.0**100

__all__ = ["KernelKind", "Parts", "WalkTile", "above", "split", "walk"]

KernelKind: TypeAlias = Literal["nngp", "ntk"]
"""Which kernel of a network: ``"nngp"``, of its outputs before training, or ``"ntk"``, of its gradients."""


@dataclass(frozen=True)
class Parts:
    """A network taken apart where its kernel simplifies.

    Parameters
    ----------
    inputs
        Layers on raw inputs, before the first Dense one.
    first
        The first Dense layer.
    below
        From there up to the first norm that every input passes, that norm included. Empty if there is none.
    above
        The rest.
    degree
        Where there is no such norm, but everything above the first Dense layer is positively homogeneous of a
        degree p, that degree: lengths are then a factor (q q′)^{p/2}, and the angle says the rest. Else None.
    """

    inputs: tuple[Layer, ...]
    first: Dense
    below: tuple[Layer, ...]
    above: tuple[Layer, ...]
    degree: float | None

    @property
    def compressible(self) -> bool:
        """Whether everything in ``above`` is a function of one angle."""
        return bool(self.below) or self.degree is not None

    @property
    def direct(self) -> bool:
        """Whether that angle is the one between the inputs as the first layer sees them."""
        return self.degree is not None or len(self.below) == 1


def split(layers: tuple[Layer, ...]) -> Parts:
    """Take a network apart at its first Dense layer and at the first norm above it."""
    start = next((k for k, layer in enumerate(layers) if isinstance(layer, Dense)), None)
    if start is None:
        raise InvalidValueError(
            "A network of infinite width has a Dense layer between its inputs and everything else; there is none "
            f"among {', '.join(type(layer).__name__ for layer in layers) or 'no layers'}."
        )
    for layer in layers[:start]:
        if not isinstance(layer, LayerNorm | RMSNorm | Identity):
            raise InvalidValueError(
                f"Raw inputs take a norm, a flatten or a Dense layer, not {layer!r}: put a Dense layer before it."
            )
    first, rest = layers[start], tuple(x for x in layers[start + 1 :] if not isinstance(x, Identity))
    assert isinstance(first, Dense)
    cut = next((k for k in range(len(rest)) if _cuts(rest, k)), None)
    if cut is not None:
        return Parts(layers[:start], first, rest[: cut + 1], rest[cut + 1 :], None)
    return Parts(layers[:start], first, (), rest, _degree(rest))


def _gaussian(layers: tuple[Layer, ...]) -> bool:
    """Whether the units above these layers, which stand on a Dense one, are Gaussian."""
    state = True
    for layer in layers:
        state = isinstance(layer, Dense) or (state and not isinstance(layer, Activate))
    return state


def _cuts(layers: tuple[Layer, ...], k: int) -> bool:
    """Whether nothing but the angle passes the k-th layer.

    Behind an activation RMSNorm also lets the mean over units pass, which may differ between inputs. A Dense
    layer above does not see it.
    """
    if not layers[k].cuts:
        return False
    blind = k + 1 == len(layers) or isinstance(layers[k + 1], Dense)
    return blind or not isinstance(layers[k], RMSNorm) or _gaussian(layers[:k])


def _degree(layers: tuple[Layer, ...]) -> float | None:
    """The degree p with K(ax, x′) = aᵖ K(x, x′) above the first Dense layer, if the layers have one."""
    degree = 1.0
    for layer in layers:
        if isinstance(layer, Activate) and layer.sigma.homogeneity is not None:
            degree *= float(layer.sigma.homogeneity)
        elif not (
            isinstance(layer, Dense) and not isinstance(layer.bias_var, Tensor) and layer.bias_var == 0
        ):
            return None
    return degree


def walk(layers: tuple[Layer, ...], state: KernelState) -> KernelState:
    """Layer after layer."""
    for layer in layers:
        state = layer(state)
    return state


def output(state: KernelState, kind: KernelKind) -> Tensor:
    """The kernel asked for."""
    if kind == "nngp":
        return state.nngp
    assert state.ntk is not None
    return state.ntk


def unit_state(theta: Tensor, ntk: Tensor | None, *, gaussian: bool) -> KernelState:
    """Angles at mean square one, as behind a norm."""
    one = torch.ones((), dtype=theta.dtype, device=theta.device)
    return KernelState(theta, one, one, ntk, gaussian=gaussian)


def above(parts: Parts, kind: KernelKind, theta: Tensor) -> Tensor:
    r"""The functions of the angle that stand for the layers above the cut, stacked: shape (functions,
    *theta.shape).

    One where the cut is at the inputs or only the covariance is asked for. Otherwise two, A and B, with
    Θ_out = A(θ) + B(θ)·Θ_in: the tangent kernel that enters is not a function of the angle, but Θ is affine in it.
    """
    gaussian = _gaussian(parts.below)
    if kind == "nngp":
        return walk(parts.above, unit_state(theta, None, gaussian=gaussian)).nngp[None]
    if parts.direct:
        state = unit_state(theta, torch.cos(theta), gaussian=gaussian)
        return output(walk(parts.above, state), "ntk")[None]
    zero = output(walk(parts.above, unit_state(theta, torch.zeros_like(theta), gaussian=gaussian)), "ntk")
    # A large Θ_in: B is a difference, and may be many orders of magnitude smaller than A.
    large = torch.full_like(theta, _LARGE)
    whole = output(walk(parts.above, unit_state(theta, large, gaussian=gaussian)), "ntk")
    return torch.stack([zero, (whole - zero) / _LARGE])


def first_state(
    rows1: Rows, rows2: Rows, dtype: torch.dtype, kind: KernelKind, span: tuple[float, float], far: bool
) -> KernelState:
    """The state behind the first Dense layer for every pair: angles exact, Θ = K."""
    theta = angles(rows1.unit, rows2.unit).to(dtype)
    q1, q2 = rows1.q.to(dtype).unsqueeze(-1), rows2.q.to(dtype).unsqueeze(-2)
    ntk = torch.sqrt(q1) * torch.sqrt(q2) * torch.cos(theta) if kind == "ntk" else None
    return KernelState(theta, q1, q2, ntk, gaussian=True, far=far, span=span)


@dataclass(frozen=True)
class WalkTile:
    """Task: one tile layer by layer, or, with an interpolant, up to the cut and then by it."""

    parts: Parts
    kind: KernelKind
    dtype: torch.dtype
    rows1: Rows
    rows2: Rows
    span: tuple[float, float]
    table: Interpolant | None = None
    far: bool = False

    def __call__(self, tile: Tile) -> Tensor:
        """The tile's entries."""
        return self.pairs(self.rows1[tile.row_slice], self.rows2[tile.column_slice])

    def pairs(self, rows1: Rows, rows2: Rows) -> Tensor:
        """The kernel of these inputs."""
        # Layers are walked in float64 up to the cut: angles near 0 and π need it, whatever is asked for above.
        state = first_state(rows1, rows2, torch.float64, self.kind, self.span, self.far)
        if self.table is None:
            return output(walk(self.parts.below + self.parts.above, state), self.kind).to(self.dtype)
        state = walk(self.parts.below, state)
        value = self.table(state.theta)
        if state.ntk is not None and len(self.table.coefficients) > 1:
            value = value + self.table(state.theta, 1) * state.ntk
        return value.to(self.dtype)
