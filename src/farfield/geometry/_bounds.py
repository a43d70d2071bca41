"""How fast depth removes correlations: the steps of P2's Theorem 4, with the conditions it needs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import InvalidValueError
from farfield.geometry._gram import normalized_gram
from farfield.geometry._isometry import isometry_gap, lyapunov

__all__ = [
    "correlation_contraction",
    "gap_bound_from_lyapunov",
    "lyapunov_bound_from_isometry",
    "theorem4_bound",
    "theorem4_depth",
]


def _check_strength(strength: float) -> None:
    if not 1.0 <= strength <= 2.0:
        raise InvalidValueError(f"An isometry strength lies in [1, 2], got {strength!r}.")


def _check_samples(n: int) -> None:
    if n < 1:
        raise InvalidValueError(f"A Gram matrix has n >= 1 samples, got {n}.")


def correlation_contraction(rho: Tensor, strength: float) -> Tensor:
    r"""Upper bound on |σ̄(ρ)/σ̄(1)|, the correlation after one layer, for any activation of strength β.

    .. math:: \left|\frac{\bar\sigma(\rho)}{\bar\sigma(1)}\right| \le (2-\beta)|\rho| + (\beta-1)\rho^2
              \quad\Longrightarrow\quad
              \frac{|\rho'|}{1-|\rho'|} \le \frac1\beta\,\frac{|\rho|}{1-|\rho|}

    The weights c_k²/Σc_k² are non-negative, sum to one, and the first is 2 − β; every later power of |ρ| is at
    most ρ². The consequence on the right is what makes γ a Lyapunov function.

    References
    ----------
    [P2] App. B, Lemma B.6.

    Examples
    --------
    >>> float(correlation_contraction(torch.tensor(0.5), 2.0))
    0.25
    """
    _check_strength(strength)
    size = rho.abs()
    return (2.0 - strength) * size + (strength - 1.0) * size * size


def gap_bound_from_lyapunov(gamma: Tensor | float, n: int, *, sharp: bool = False) -> Tensor:
    r"""Upper bound on the isometry gap of a unit-diagonal n × n Gram matrix with Lyapunov value γ.

    .. math:: -\log\mathcal I(G) \le 2\gamma \quad\text{once}\quad \gamma < \frac{1}{2n-2}

    and ∞ (no bound) before. With ``sharp`` the quadratic bound (n−1)ε², ε = γ/(1+γ) the largest correlation, which
    the same condition gives: Σe_i² ≤ n(n−1)ε² for the eigenvalue excesses e_i, |e_i| ≤ ½, and e − log(1+e) ≤ e².

    Parameters
    ----------
    gamma
        γ ≥ 0, any shape.
    n
        Number of samples.

    References
    ----------
    [P2] App. B; the sharp form is ours and explains why the gap really falls like (2−β)^{2ℓ}.

    Examples
    --------
    >>> float(gap_bound_from_lyapunov(0.01, 10)), float(gap_bound_from_lyapunov(1.0, 10))
    (0.02, inf)
    """
    _check_samples(n)
    g = torch.as_tensor(gamma, dtype=torch.float64) if not isinstance(gamma, Tensor) else gamma
    if n == 1:
        return torch.zeros_like(g)
    bound = (n - 1) * (g / (1.0 + g)) ** 2 if sharp else 2.0 * g
    return torch.where(g < 1.0 / (2 * n - 2), bound, torch.full_like(g, torch.inf))


def lyapunov_bound_from_isometry(gap: Tensor | float, n: int) -> Tensor:
    r"""γ(G) ≤ 2·I(G)^{−n} for a unit-diagonal n × n Gram matrix, given its isometry gap.

    For any pair det G ≤ 1 − ρ², so ρ/(1−ρ) = ρ(1+ρ)/(1−ρ²) ≤ 2/det G, and det G = I(G)ⁿ.

    References
    ----------
    [P2] App. B; behind the depth condition of Theorem 4.

    Examples
    --------
    >>> float(lyapunov_bound_from_isometry(0.0, 5))
    2.0
    """
    _check_samples(n)
    g = torch.as_tensor(gap, dtype=torch.float64) if not isinstance(gap, Tensor) else gap
    return 2.0 * torch.exp(n * g)


def theorem4_depth(gap: float, n: int, strength: float) -> float:
    r"""Layers after which Theorem 4's exponential bound is in force, from the first gap alone.

    .. math:: \ell \ge \frac{-n\log\mathcal I(G^0) + \log 4n}{\log\beta}

    Sufficient, not necessary: it bounds γ(G⁰) by 2·I(G⁰)^{−n}. The paper's Eq. 24 prints β⁻¹ where (log β)⁻¹
    belongs. ∞ for β = 1 (a linear network moves nothing) and for an infinite gap, where the gap alone decides
    nothing: linearly dependent samples still separate while γ(G⁰) is finite (:func:`theorem4_bound` uses γ), but
    parallel samples never do, nor do *antipodal* ones under an odd activation, which the paper's "not aligned" does
    not exclude.

    Parameters
    ----------
    gap
        Isometry gap of the unit-diagonal Gram matrix of the inputs, ≥ 0.
    n
        Number of samples.
    strength
        β of the activation.

    References
    ----------
    [P2] Eq. 24, corrected.

    Examples
    --------
    >>> round(theorem4_depth(0.5, 10, 1.2665288965), 2)
    36.77
    """
    _check_strength(strength)
    _check_samples(n)
    if not gap >= 0:
        raise InvalidValueError(f"An isometry gap is >= 0, got {gap!r}.")
    if strength == 1.0 or math.isinf(gap):
        return math.inf
    return (n * gap + math.log(4 * n)) / math.log(strength)


def theorem4_bound(
    matrix: Float[Tensor, "n n"], strength: float, depth: int, *, sharp: bool = False
) -> Float[Tensor, " layers"]:
    r"""Upper bounds on the mean-field isometry gap after 0 … depth layers.

    .. math:: -\log\mathcal I(G^\ell) \le 2\gamma(G^0)\,\beta^{-\ell}
              \quad\text{once}\quad \gamma(G^0)\,\beta^{-\ell} < \frac1{2n-2}

    and, since isometry never decreases from layer to layer (:func:`farfield.geometry.mean_field_step`), the gap of
    G⁰'s unit-diagonal scaling at every depth: the smaller of the two is returned, ∞ only where neither says
    anything. Eq. 11 has C·n·β^−ℓ with a C that it does not name, and its proof ends with 2nγ(G⁰)β^−ℓ. C = 1 is a
    bound for well-parted inputs at most: under ReLU eight near duplicates exceed nβ^−ℓ at each of 25 layers.

    Parameters
    ----------
    matrix
        Gram matrix of the inputs.
    strength
        β of the activation.
    depth
        Number of layers.
    sharp
        Use (n−1)ε² in place of 2γ.

    References
    ----------
    [P2] Theorem 4, corrected.

    Examples
    --------
    >>> G = torch.tensor([[1.0, 0.2], [0.2, 1.0]], dtype=torch.float64)
    >>> [round(v, 4) for v in theorem4_bound(G, 2.0, 5).tolist()]
    [0.0204, 0.0204, 0.0204, 0.0204, 0.0204, 0.0156]
    """
    _check_strength(strength)
    if depth < 0:
        raise InvalidValueError(f"A depth is >= 0, got {depth}.")
    gamma = lyapunov(matrix).to(torch.float64)
    layers = torch.arange(depth + 1, dtype=torch.float64, device=matrix.device)
    decayed = gamma * torch.exp(-layers * math.log(strength))
    bound = gap_bound_from_lyapunov(decayed, matrix.shape[-1], sharp=sharp)
    start = isometry_gap(normalized_gram(matrix)).to(torch.float64)
    return torch.minimum(bound, start)
