"""The Gram matrix of a normalized network of infinite width, layer after layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import InvalidValueError
from farfield.gaussian import Activation, activation, isometry_strength, moments, tabulate_dual
from farfield.gaussian._registry import ActivationLike
from farfield.geometry._bounds import theorem4_bound
from farfield.geometry._gram import normalized_gram
from farfield.geometry._isometry import isometry_gap

__all__ = ["GapPrediction", "mean_field_gaps", "mean_field_step", "predict_gap"]


@dataclass(frozen=True)
class GapPrediction:
    """The isometry gap after 0 … depth layers, as the mean field has it and as both rates have it.

    Parameters
    ----------
    mean_field
        The exact infinite-width gap at every layer.
    bound
        Theorem 4, corrected: an upper bound on ``mean_field`` wherever it is finite.
    paper_rate
        gap₀·β^{−ℓ}: the rate the paper proves, as a line through the first gap. Not a bound by itself.
    sharp_rate
        ``mean_field`` extended from its last layer backwards at (2−β)² a layer: the asymptotic rate. Where the curve
        is straight on a logarithmic axis it coincides with this line. With β = 2 there is no such line (no linear
        part: each layer at least squares a correlation) and every earlier entry is ∞.
    strength
        β of the activation.
    """

    mean_field: Tensor
    bound: Tensor
    paper_rate: Tensor
    sharp_rate: Tensor
    strength: float


def _off_diagonal(unit: Tensor) -> tuple[Tensor, Tensor]:
    eye = torch.eye(unit.shape[-1], dtype=torch.bool, device=unit.device)
    return torch.where(eye, torch.zeros_like(unit), unit), eye


def _reduced_ratio(sigma: Activation, rho: Tensor) -> Tensor:
    """σ̄(ρ)/σ̄(1) elementwise, by formula where one keeps its digits near ρ = 0, else from the table."""
    if moments(sigma).constant:
        raise InvalidValueError(
            f"{sigma.name} is constant under N(0, 1): after centering nothing is left to normalize."
        )
    if sigma.closed_form is not None and sigma.closed_form.reduced is not None:
        reduced, one = sigma.closed_form.reduced, torch.ones_like(rho)
        ratio = reduced(rho, one, one) / reduced(one, one, one)
    else:
        # The table is good to its tolerance, 1e-12; subtracting its own value at 0 makes ρ = 0 a fixed point.
        values = tabulate_dual(sigma).normalized(torch.cat([rho.reshape(-1), rho.new_zeros(1)]))
        ratio = values[:-1].reshape(rho.shape) - values[-1]
    # Parallel samples stay parallel, and antipodal ones antipodal where σ is odd: rounding must not part them.
    rounding = max(1e-11, 64 * torch.finfo(ratio.dtype).eps)
    kept = (rho.abs() == 1.0) & (ratio.detach().abs() > 1.0 - rounding)
    return torch.where(kept, torch.sign(ratio.detach()), ratio)


def mean_field_step(
    matrix: Float[Tensor, "*batch n n"], sigma: ActivationLike
) -> Float[Tensor, "*batch n n"]:
    r"""One normalized layer of infinite width: G ← σ̄(G̃)/σ̄(1) elementwise, unit diagonal.

    The Gram matrix after x ↦ LN(σ(Wx)), W Gaussian, as the width grows: centering subtracts the mean-field
    offset, projection divides by the mean-field scale. Exact to rounding where a formula for σ̄ is registered, else
    from a table with an absolute error below 1e-12 an entry. Differentiable for off-diagonal entries inside (−1, 1).

    Isometry never decreases under it: the step is Σ_k w_k G̃^{∘k} with weights w_k = c_k²/Σc_k² ≥ 0 that sum to one,
    log det is concave, and det G̃^{∘k} ≥ det G̃ for k ≥ 1 (Oppenheim), while the trace stays n.

    Parameters
    ----------
    matrix
        Gram matrix, normalized first if its diagonal is not one.
    sigma
        Name, Activation, callable or elementwise module.

    Raises
    ------
    InvalidValueError
        If σ is constant under the Gaussian: nothing is left after centering.

    References
    ----------
    [P2] §5–6; monotone isometry is ours.

    Examples
    --------
    >>> G = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    >>> round(float(mean_field_step(G, "relu")[0, 1]), 6)
    0.426422
    """
    off, eye = _off_diagonal(normalized_gram(matrix))
    stepped = _reduced_ratio(activation(sigma), off)
    return torch.where(eye, torch.ones_like(stepped), stepped.clamp(-1.0, 1.0))


def mean_field_gaps(
    matrix: Float[Tensor, "n n"], sigma: ActivationLike, depth: int
) -> Float[Tensor, " layers"]:
    """Isometry gap of the mean-field Gram matrix after 0 … depth layers (layer 0: the inputs, normalized).

    Examples
    --------
    >>> G = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    >>> bool((mean_field_gaps(G, "relu", 5).diff() < 0).all())
    True
    """
    if depth < 0:
        raise InvalidValueError(f"A depth is >= 0, got {depth}.")
    sigma = activation(sigma)
    current = normalized_gram(matrix)
    gaps = [isometry_gap(current)]
    for _ in range(depth):
        current = mean_field_step(current, sigma)
        gaps.append(isometry_gap(current))
    return torch.stack(gaps)


def predict_gap(matrix: Float[Tensor, "n n"], sigma: ActivationLike, depth: int) -> GapPrediction:
    r"""What theory says of the isometry gap through depth: the exact mean field, the bound and both rates.

    [P2] proves a rate of 1/β a layer. The asymptotic rate is (2−β)², faster for every β > 1 (ReLU: 0.538 against
    0.790): for small correlations one layer multiplies each by 2 − β, and the gap is quadratic in them.

    Parameters
    ----------
    matrix
        Gram matrix of the inputs.
    sigma
        Name, Activation, callable or elementwise module.
    depth
        Number of layers.

    Examples
    --------
    >>> G = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    >>> prediction = predict_gap(G, "relu", 40)
    >>> bool((prediction.mean_field <= prediction.bound).all())
    True
    """
    sigma = activation(sigma)
    strength = isometry_strength(sigma)
    gaps = mean_field_gaps(matrix, sigma, depth)
    layers = torch.arange(depth + 1, dtype=gaps.dtype, device=gaps.device)
    sharp = (
        gaps[-1] * (2.0 - strength) ** (2.0 * (layers - depth))
        if strength < 2.0
        else torch.where(layers < depth, torch.inf, gaps[-1])
    )
    return GapPrediction(
        mean_field=gaps,
        bound=theorem4_bound(matrix, strength, depth).to(gaps),
        paper_rate=gaps[0] * strength ** (-layers),
        sharp_rate=sharp,
        strength=strength,
    )
