"""The kernel of a network given as a torch module."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from farfield.errors import InvalidValueError
from farfield.gaussian import activation
from farfield.kernels._layers import Activate, Dense, Identity, Layer, LayerNorm, RMSNorm, Variance
from farfield.kernels._network import NetworkKernel
from farfield.nn import MLP, Elementwise, GroupedLayerNorm, Project, ScaledLinear
from farfield.nn import LayerNorm as TwoPartLayerNorm

__all__ = ["from_module"]


def from_module(
    module: nn.Module,
    *,
    weight_var: Variance | None = None,
    bias_var: Variance | None = None,
    compress: bool = True,
    tolerance: float | None = None,
) -> NetworkKernel:
    """The kernels of the module's architecture at infinite width, in the NTK parametrization.

    A module fixes the layers; how its weights are drawn it says only if it is a :class:`farfield.nn.MLP` or made of
    :class:`farfield.nn.ScaledLinear`. For ``nn.Linear`` give the variances: weights N(0, σ_w²/fan_in), biases
    N(0, σ_b²). (Torch's own initialization is σ_w² = 1/3 and, unlike any fixed σ_b², biases of variance 1/(3
    fan_in).) A network in standard parametrization has the same NNGP; the NTK returned is that of the same
    function in NTK parametrization.

    Norms count as ε = 0. Learnable affine parameters of a norm would add to the NTK and are refused, as is
    every module that is no Linear, elementwise activation, LayerNorm, RMSNorm, flatten, identity or dropout at
    evaluation.

    Parameters
    ----------
    module
        ``nn.Sequential``, nested or not, or :class:`farfield.nn.MLP`.
    weight_var, bias_var
        σ_w² and σ_b² for every ``nn.Linear``; a layer without bias has σ_b² = 0.
    compress, tolerance
        As in :class:`NetworkKernel`.

    Raises
    ------
    InvalidValueError
        With the path of the module that can't be represented, and why.

    Examples
    --------
    >>> import torch
    >>> net = nn.Sequential(
    ...     nn.Linear(3, 8), nn.LayerNorm(8, elementwise_affine=False), nn.ReLU(), nn.Linear(8, 1)
    ... )
    >>> k = from_module(net, weight_var=2.0, bias_var=0.1)
    >>> round(float(k.nngp(torch.ones(1, 3))), 6)
    1.1
    """
    linears = (weight_var, bias_var)
    layers = tuple(_layers(module, "", linears))
    try:
        return NetworkKernel(layers, compress, tolerance)
    except InvalidValueError as error:
        raise InvalidValueError(f"{type(module).__name__} has no kernel: {error}") from error


_Variances = tuple[Variance | None, Variance | None]


def _layers(module: nn.Module, path: str, linears: _Variances) -> Iterator[Layer]:
    if isinstance(module, TwoPartLayerNorm):
        yield LayerNorm()
    elif isinstance(module, MLP) and linears == (None, None) and module.spec.parametrization != "ntk":
        spec = module.spec
        inner = (spec.weight_var, spec.bias_var)
        head = (spec.first_weight_var, spec.bias_var)
        for k, (name, child) in enumerate(module.named_children()):
            yield from _layers(child, _join(path, name), head if k == 0 else inner)
    elif isinstance(module, nn.Sequential):
        for name, child in module.named_children():
            yield from _layers(child, _join(path, name), linears)
    else:
        yield _one(module, path or "the module itself", linears)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _one(module: nn.Module, path: str, linears: _Variances) -> Layer:
    if isinstance(module, ScaledLinear):
        return Dense(module.weight_var, module.bias_var)
    if isinstance(module, nn.Linear):
        weight_var, bias_var = linears
        if weight_var is None or (bias_var is None and module.bias is not None):
            raise InvalidValueError(
                f"{path} is an nn.Linear, which does not say how its weights are drawn. Give weight_var and "
                f"bias_var (weights "
                "N(0, weight_var/fan_in), biases N(0, bias_var)), or build the network with farfield.nn.MLP."
            )
        return Dense(weight_var, 0.0 if module.bias is None or bias_var is None else bias_var)
    if isinstance(module, nn.LayerNorm | nn.RMSNorm | GroupedLayerNorm):
        if any(True for _ in module.parameters()):
            raise InvalidValueError(
                f"{path} ({type(module).__name__}) has learnable affine parameters, whose gradients add to the "
                f"NTK. Make it "
                "with elementwise_affine=False."
            )
        return RMSNorm() if isinstance(module, nn.RMSNorm) else LayerNorm()
    if isinstance(module, Project):
        return RMSNorm()
    if isinstance(module, nn.Identity | nn.Flatten):
        return Identity()
    if isinstance(module, nn.Dropout | nn.AlphaDropout):
        if module.training and module.p > 0:
            raise InvalidValueError(
                f"{path} is dropout in training mode, which is random. Call module.eval() first."
            )
        return Identity()
    if isinstance(module, Elementwise):
        return Activate(module.sigma, module.scale)
    if not any(True for _ in module.children()):
        try:
            return Activate(activation(module), 1.0)
        except InvalidValueError:
            pass
    raise InvalidValueError(
        f"{path} is a {type(module).__name__}, which has no kernel here. Known: Linear, elementwise "
        f"activations, LayerNorm, "
        "RMSNorm, Flatten, Identity, Dropout at evaluation, in nn.Sequential. For a residual network build the "
        "layers: "
        "kernels.NetworkKernel((Dense(), Residual((…, Dense())), …))."
    )
