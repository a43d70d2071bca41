"""Activations as modules."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from farfield.gaussian import Activation, activation
from farfield.gaussian._registry import ActivationLike, registered_parameters
from farfield.gaussian._wrap import NATIVE

__all__ = ["Elementwise", "activation_module"]


class Elementwise(nn.Module):
    """Any :class:`farfield.gaussian.Activation` as a module, optionally scaled: x ↦ scale·σ(x).

    A wrapped module is a submodule: its parameters are learned, moved and saved with the rest, while ``sigma`` goes
    on describing it as it was when it was wrapped.

    Parameters
    ----------
    sigma
        Name, Activation, callable or elementwise module.
    scale
        Factor of the output.
    """

    def __init__(self, sigma: ActivationLike, *, scale: float = 1.0) -> None:
        super().__init__()
        self.sigma: Activation = activation(sigma)
        self.scale = float(scale)
        given = getattr(self.sigma.function, "given", None)
        # ``sigma`` holds a frozen copy, for the theory; this one learns.
        self.function = copy.deepcopy(given).requires_grad_(True) if isinstance(given, nn.Module) else None

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        y = self.sigma(x) if self.function is None else self.function(x)
        return y if self.scale == 1.0 else self.scale * y

    def extra_repr(self) -> str:
        """What print shows."""
        return self.sigma.name if self.scale == 1.0 else f"{self.sigma.name}, scale={self.scale:.6g}"


def activation_module(sigma: ActivationLike) -> nn.Module:
    """Torch's own module for an activation where it has one (so that other tools know it), else Elementwise.

    Examples
    --------
    >>> activation_module("gelu_tanh"), activation_module("sin")
    (GELU(approximate='tanh'), Elementwise(sin))
    """
    if isinstance(sigma, nn.Module):
        return sigma
    sigma = activation(sigma)
    if registered_parameters(sigma) is None:  # a callable of one's own may be called "relu" too
        return Elementwise(sigma)
    if sigma.name == "gelu_tanh":
        return nn.GELU(approximate="tanh")
    if sigma.name == "hardtanh":
        low, high = sigma.range or (-1.0, 1.0)
        return nn.Hardtanh(low, high)
    make = NATIVE.get(sigma.name)
    return make(**dict(sigma.parameters)) if make else Elementwise(sigma)
