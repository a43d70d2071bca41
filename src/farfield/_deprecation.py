"""How a public name goes: it works for two more minor releases, and says what to use instead.

Holds: decorators for functions, classes and arguments that are on their way out. May import: nothing. Never: removes
anything; ``tests/test_release.py`` fails when a release is reached in which something should be gone.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

__all__ = ["FarfieldDeprecationWarning", "deprecated", "renamed_argument"]

P = ParamSpec("P")
R = TypeVar("R")


class FarfieldDeprecationWarning(FutureWarning):
    """Something public will be removed. A FutureWarning, because Python hides DeprecationWarning from most users."""


def _message(what: str, since: str, removed_in: str, instead: str) -> str:
    return f"{what} is deprecated since farfield {since} and will be removed in {removed_in}. Use {instead} instead."


def deprecated(*, since: str, removed_in: str, instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function, or a class by its ``__init__``, as on its way out: every call warns, and works as before.

    Parameters
    ----------
    since, removed_in
        Versions: the first that warns, and the first without it.
    instead
        What to write instead, as code.

    Examples
    --------
    >>> @deprecated(since="0.3", removed_in="0.5", instead="new_name(x)")
    ... def old_name(x):
    ...     return x + 1
    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     old_name(1)
    2
    >>> print(seen[0].message)
    old_name is deprecated since farfield 0.3 and will be removed in 0.5. Use new_name(x) instead.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def warning(*args: P.args, **kwargs: P.kwargs) -> R:
            warnings.warn(
                _message(name, since, removed_in, instead), FarfieldDeprecationWarning, stacklevel=2
            )
            return function(*args, **kwargs)

        return warning

    return decorate


def renamed_argument(
    old: str, new: str, *, since: str, removed_in: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Take an argument under its old name too, with a warning; both at once are refused.

    Parameters
    ----------
    old, new
        Names of the keyword argument.
    since, removed_in
        As for :func:`deprecated`.

    Examples
    --------
    >>> @renamed_argument("eps", "norm_eps", since="0.3", removed_in="0.5")
    ... def layer(width, norm_eps=1e-5):
    ...     return norm_eps
    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     layer(8, eps=0.1)
    0.1
    >>> print(seen[0].message)
    layer(eps=) is deprecated since farfield 0.3 and will be removed in 0.5. Use layer(norm_eps=) instead.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__.removesuffix(".__init__")
        parameters = inspect.signature(function).parameters
        if new not in parameters or old in parameters:
            raise TypeError(f"{name} must have the argument {new!r} and no argument {old!r}.")

        @functools.wraps(function)
        def renaming(*args: P.args, **kwargs: P.kwargs) -> R:
            given: dict[str, Any] = kwargs
            if old in given:
                message = _message(f"{name}({old}=)", since, removed_in, f"{name}({new}=)")
                warnings.warn(message, FarfieldDeprecationWarning, stacklevel=2)
                value = given.pop(old)
                bound = inspect.signature(function).bind_partial(*args, **given)
                if new in bound.arguments:
                    raise TypeError(
                        f"{name}() got both {old!r} and {new!r}; {new!r} is the new name of {old!r}."
                    )
                given[new] = value
            return function(*args, **kwargs)

        return renaming

    return decorate
