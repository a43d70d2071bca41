"""Activations by name: look one up, add your own."""

from __future__ import annotations

import copyreg
import functools
import pickle
from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor, nn

from farfield.errors import InvalidValueError, UnknownNameError
from farfield.gaussian._activation import Activation
from farfield.gaussian._catalogue import CATALOGUE
from farfield.gaussian._wrap import recognize, wrap_activation

__all__ = ["ActivationLike", "activation", "activation_names", "register_activation", "registered_parameters"]

ActivationLike: TypeAlias = "str | Activation | nn.Module | Callable[[Tensor], Tensor]"
"""What every function here takes for an activation: a name, an Activation, a module or a callable."""

_FACTORIES: dict[str, Callable[..., Activation]] = dict(CATALOGUE)


def activation_names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(_FACTORIES))


def register_activation(name: str, factory: Callable[..., Activation]) -> None:
    """Add an activation under a new name; ``factory(**parameters)`` returns the :class:`Activation`.

    Registering enrolls the activation in the contract suite of the tests (derivative, kinks, growth, range,
    Lipschitz constant, dual against quadrature), so a wrong property is found there.

    Raises
    ------
    InvalidValueError
        If the name is taken: a registered name never changes its meaning.
    """
    if name in _FACTORIES:
        raise InvalidValueError(f"The activation name {name!r} is taken; choose another.")
    _FACTORIES[name] = factory


@functools.lru_cache(maxsize=1024)
def _make(name: str, parameters: tuple[tuple[str, float], ...]) -> Activation:
    # One object per name and parameters, so that everything computed from it is cached once.
    return _FACTORIES[name](**dict(parameters))


def activation(sigma: ActivationLike, /, **parameters: float) -> Activation:
    """The :class:`Activation` meant by a name, a module, a callable or an Activation.

    Known modules and functions (``nn.GELU()``, ``torch.tanh``, ``nn.LeakyReLU(0.2)``) become the registered
    value with its closed forms; anything else elementwise is wrapped, its kinks located numerically.

    Parameters
    ----------
    sigma
        What to look up or wrap.
    parameters
        For names only: ``activation("leaky_relu", negative_slope=0.2)``, ``activation("power_relu", n=3)``.

    Raises
    ------
    UnknownNameError
        For a name that is not registered; the message lists near matches.
    InvalidValueError
        For something that is not elementwise, such as softmax.

    Examples
    --------
    >>> from torch import nn
    >>> activation("leaky_relu", negative_slope=0.2).parameters
    (('negative_slope', 0.2),)
    >>> activation(nn.GELU(approximate="tanh")).name
    'gelu_tanh'
    >>> activation("rellu")
    Traceback (most recent call last):
        ...
    farfield.errors.UnknownNameError: There is no activation named 'rellu'. Did you mean ...
    """
    if isinstance(sigma, str):
        if sigma not in _FACTORIES:
            raise UnknownNameError("activation", sigma, _FACTORIES)
        try:
            return _make(sigma, tuple(sorted(parameters.items())))
        except TypeError as error:
            raise InvalidValueError(
                f"Activation {sigma!r} does not take {', '.join(parameters)}: {error}."
            ) from error
    if parameters:
        raise InvalidValueError(
            f"Parameters ({', '.join(parameters)}) go with a registered name, not with {sigma!r}."
        )
    if isinstance(sigma, Activation):
        return sigma
    known = recognize(sigma)
    if known is not None:
        name, values = known
        return _make(name, tuple(sorted(values.items())))
    return wrap_activation(sigma)


def registered_parameters(sigma: Activation) -> tuple[tuple[str, float], ...] | None:
    """The parameters with which ``sigma``'s name gives this very value, or None.

    None for a wrapped callable, even one whose own name is a registered one: ``def relu(x): ...`` is not ReLU.
    """
    for parameters in ((), tuple(sorted(sigma.parameters))):
        try:
            if sigma.name in _FACTORIES and _make(sigma.name, parameters) == sigma:
                return parameters
        except (TypeError, InvalidValueError):  # the factory does not take these
            continue
    return None


def _look_up(name: str, parameters: tuple[tuple[str, float], ...]) -> Activation:
    return activation(name, **dict(parameters))


def _reduce(sigma: Activation) -> Any:
    """How an Activation is pickled: by name and parameters if registered, else field by field."""
    parameters = registered_parameters(sigma)
    if parameters is not None:
        return _look_up, (sigma.name, parameters)
    for function in (sigma.function, sigma.derivative):
        if "<" in getattr(getattr(function, "given", function), "__qualname__", ""):
            raise pickle.PicklingError(
                f"The activation {sigma.name!r} wraps a lambda or a local function, which pickle cannot store. "
                "Define it at the top of a module, or register it with farfield.gaussian.register_activation, or "
                "save the network's state_dict() instead."
            )
    return sigma.__reduce_ex__(4)


copyreg.pickle(Activation, _reduce)
