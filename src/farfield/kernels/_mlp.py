"""The kernel of a multilayer perceptron."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from farfield.errors import InvalidValueError
from farfield.gaussian import activation as as_activation
from farfield.gaussian._registry import ActivationLike
from farfield.kernels._layers import Activate, Dense, Layer, LayerNorm, RMSNorm, Variance
from farfield.kernels._network import NetworkKernel

__all__ = ["mlp"]


def mlp(
    *,
    depth: int,
    activation: ActivationLike = "relu",
    layer_norm: Literal["first", "second", "last", "every"] | Iterable[int] | None = None,
    order: Literal["pre", "post"] = "pre",
    norm: Literal["layer", "rms"] = "layer",
    weight_var: Variance = 1.0,
    bias_var: Variance = 0.0,
    normalized: bool = True,
    compress: bool = True,
    tolerance: float | None = None,
) -> NetworkKernel:
    """The kernels of a fully connected network with ``depth`` hidden layers of infinite width and a linear readout.

    Parameters
    ----------
    depth
        Number of hidden layers, ≥ 1.
    activation
        Name, Activation, callable or elementwise module.
    layer_norm
        Hidden layers with a norm: ``"first"``, ``"second"``, ``"last"``, ``"every"``, their indices counted
        from 0, or None.
    order
        ``"pre"``: Dense → norm → activation ([P1]). ``"post"``: Dense → activation → norm ([P2]).
    norm
        ``"layer"`` (center and divide) or ``"rms"`` (divide); the same in front of the activation.
    weight_var, bias_var
        σ_w² and σ_b² of every layer in the NTK parametrization; numbers, or 0-dim tensors to differentiate by.
    normalized
        Whether activations are scaled to E φ(u)² = 1, as in [P1]. With ``normalized=False`` and
        ``weight_var=2`` a ReLU network has the same hidden layers.
    compress, tolerance
        As in :class:`NetworkKernel`.

    Examples
    --------
    >>> import torch
    >>> k = mlp(depth=3, activation="gelu", layer_norm="every", bias_var=0.1)
    >>> k.ntk(torch.eye(2, dtype=torch.float64))
    tensor([[4.2350, 1.2351],
            [1.2351, 4.2350]], dtype=torch.float64)
    """
    if depth < 1:
        raise InvalidValueError(f"A network has at least one hidden layer, got depth={depth}.")
    if order not in ("pre", "post") or norm not in ("layer", "rms"):
        raise InvalidValueError(
            "The order is 'pre' or 'post' (norm before or after the activation) and the norm 'layer' or 'rms'; got "
            f"{order!r} and {norm!r}."
        )
    sigma = as_activation(activation)
    where = _norm_layers(layer_norm, depth)
    norm_layer: Layer = LayerNorm() if norm == "layer" else RMSNorm()
    layers: list[Layer] = []
    for k in range(depth):
        unit: list[Layer] = [Activate(sigma, None if normalized else 1.0)]
        if k in where:
            unit = [norm_layer, *unit] if order == "pre" else [*unit, norm_layer]
        layers += [Dense(weight_var, bias_var), *unit]
    layers.append(Dense(weight_var, bias_var))
    return NetworkKernel(tuple(layers), compress, tolerance)


def _norm_layers(layer_norm: str | Iterable[int] | None, depth: int) -> frozenset[int]:
    if layer_norm is None:
        return frozenset()
    if isinstance(layer_norm, str):
        named = {"first": {0}, "second": {1}, "last": {depth - 1}, "every": set(range(depth))}
        if layer_norm not in named:
            raise InvalidValueError(
                f"layer_norm is one of {', '.join(named)}, the hidden layers' indices or None, got {layer_norm!r}."
            )
        where = frozenset(named[layer_norm])
    else:
        where = frozenset(int(k) for k in layer_norm)
    outside = sorted(k for k in where if not 0 <= k < depth)
    if outside:
        raise InvalidValueError(
            f"A norm sits at a hidden layer, 0 to {depth - 1} here (depth {depth}); got {outside}."
        )
    return where
