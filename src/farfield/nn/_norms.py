"""LayerNorm taken apart: centering and projection are two operations with two different guarantees."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError
from farfield.gaussian import mean_field_constants, moments
from farfield.gaussian._registry import ActivationLike
from farfield.nn._chain import Chain

__all__ = ["Center", "GroupedLayerNorm", "LayerNorm", "MeanFieldCenter", "MeanFieldProject", "Project"]


class Center(nn.Module):
    """x ↦ x − mean(x) over the last axis: a linear projection onto the hyperplane 1ᵀx = 0.

    It bounds nothing and can lower isometry.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., d) → (..., d)."""
        return x - x.mean(-1, keepdim=True)


class Project(nn.Module):
    r"""x ↦ x / √(mean(x²) + ε) over the last axis: onto the sphere of radius √d. RMSNorm without affine.

    The output is bounded by √d in norm for every finite input, however large or small (squares are taken after
    division by the largest entry). Isometry never decreases: with ε = 0 log-isometry gains exactly
    :func:`farfield.geometry.normalization_gain`, and ε > 0 still brings the rows' lengths closer together.

    Parameters
    ----------
    norm_eps
        ε ≥ 0. The theory has ε = 0, where x = 0 has no image (nan); ε > 0 maps it to 0.
    """

    def __init__(self, norm_eps: float = 0.0) -> None:
        super().__init__()
        self.norm_eps = _checked_eps(norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., d) → (..., d)."""
        root = math.sqrt(self.norm_eps)
        size = x.detach().abs().amax(-1, keepdim=True).clamp(min=root)
        y = x / size
        square = (y * y).mean(-1, keepdim=True)
        return y * torch.rsqrt(square + (root / size) ** 2 if root else square)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"norm_eps={self.norm_eps:g}"


class LayerNorm(Chain):
    """Project ∘ Center: equal to ``torch.nn.LayerNorm(d, elementwise_affine=False)`` for any d.

    Parameters
    ----------
    norm_eps
        ε of the projection; torch's default is 1e-5, the theory's is 0.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 2.0, 6.0]])
    >>> torch.allclose(LayerNorm()(x), torch.nn.functional.layer_norm(x, (3,)))
    True
    """

    def __init__(self, norm_eps: float = 1e-5) -> None:
        super().__init__(Center(), Project(norm_eps))


class MeanFieldCenter(nn.Module):
    """x ↦ x − c₀, with c₀ = E σ(z): what centering after σ becomes at infinite width.

    A constant shift: it bounds nothing. Reference: [P2] §6.

    Parameters
    ----------
    sigma
        The activation that comes before.
    variance
        Variance of the pre-activations.
    output_scale
        Factor of σ's output, as the NTK parametrization has one.
    """

    def __init__(self, sigma: ActivationLike, *, variance: float = 1.0, output_scale: float = 1.0) -> None:
        super().__init__()
        self.offset = output_scale * mean_field_constants(sigma, variance=variance)[0]

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x - self.offset

    def extra_repr(self) -> str:
        """What print shows."""
        return f"offset={self.offset:.6g}"


class MeanFieldProject(nn.Module):
    """x ↦ x / √Var σ(z): what projection after σ and centering becomes at infinite width.

    A constant scale: unlike :class:`Project` it bounds nothing. Reference: [P2] §6.

    Parameters
    ----------
    sigma
        The activation that comes before.
    variance
        Variance of the pre-activations.
    output_scale
        Factor of σ's output, as the NTK parametrization has one.
    """

    def __init__(self, sigma: ActivationLike, *, variance: float = 1.0, output_scale: float = 1.0) -> None:
        super().__init__()
        m = moments(sigma, variance=variance)
        if m.constant or output_scale == 0.0:
            raise InvalidValueError(
                "The activation is constant under the Gaussian: there is nothing to scale."
            )
        self.scale = abs(output_scale) * m.scale

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x / self.scale

    def extra_repr(self) -> str:
        """What print shows."""
        return f"scale={self.scale:.6g}"


class GroupedLayerNorm(nn.Module):
    """LN-G: LayerNorm inside each of g groups of d/g features, over the last axis.

    Equal to ``torch.nn.GroupNorm`` on inputs of shape (n, d); unlike it, it keeps every other axis apart, so
    (n, tokens, d) is normalized per token. With ε = 0, groups of two features keep only a sign.

    Parameters
    ----------
    num_features
        d.
    groups
        g, a divisor of d. With g = 1 this is LayerNorm.
    elementwise_affine
        Whether to learn a scale and a shift per feature.
    norm_eps
        ε inside the square root.

    References
    ----------
    [P3] LN-G.

    Examples
    --------
    >>> GroupedLayerNorm(8, groups=4, elementwise_affine=False)(torch.arange(8.0)[None]).sign()
    tensor([[-1.,  1., -1.,  1., -1.,  1., -1.,  1.]])
    """

    def __init__(
        self, num_features: int, groups: int, *, elementwise_affine: bool = True, norm_eps: float = 1e-5
    ) -> None:
        super().__init__()
        if not isinstance(groups, int) or groups < 1 or num_features % groups:
            raise InvalidValueError(
                f"The number of groups divides the number of features; {groups} does not divide {num_features}."
            )
        if num_features == groups:
            raise InvalidValueError(
                f"{groups} groups of {num_features} features hold one feature each, and a single centered feature is "
                "always 0. Use fewer groups."
            )
        self.num_features, self.groups = num_features, groups
        self.norm_eps = _checked_eps(norm_eps)
        self.weight = nn.Parameter(torch.ones(num_features)) if elementwise_affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., d) → (..., d)."""
        size = self.num_features // self.groups
        grouped = x.reshape(*x.shape[:-1], self.groups, size)
        y = nn.functional.layer_norm(grouped, (size,), eps=self.norm_eps).reshape(x.shape)
        kind = y.dtype  # as torch's LayerNorm, whatever type its weights have
        y = y if self.weight is None else y * self.weight
        return (y if self.bias is None else y + self.bias).to(kind)

    def extra_repr(self) -> str:
        """What print shows."""
        affine = self.weight is not None
        return f"{self.num_features}, groups={self.groups}, elementwise_affine={affine}, norm_eps={self.norm_eps:g}"


class GroupedChannelNorm(GroupedLayerNorm):
    """LN-G over the channels of every place of an image: the second axis of (n, channels, height, width).

    Parameters as :class:`GroupedLayerNorm`, with the channels as features.

    References
    ----------
    [P3] LN-G.

    Examples
    --------
    >>> GroupedChannelNorm(8, groups=2)(torch.randn(5, 8, 4, 4)).shape
    torch.Size([5, 8, 4, 4])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, channels, …) → the same."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def _checked_eps(norm_eps: float) -> float:
    if not norm_eps >= 0:
        raise InvalidValueError(f"norm_eps is added to a mean square and must be >= 0, got {norm_eps!r}.")
    return float(norm_eps)
