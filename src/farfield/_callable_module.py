"""A package that is also its main function: ``farfield.audit(model, x)`` beside ``farfield.audit.rule("FF001")``.

Importing ``farfield.audit`` binds the *package* to the name ``audit`` of the root, whatever stood there before, so a
function re-exported under the same name would stop being callable as soon as anybody imported the package. Making
the package callable removes the race.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

__all__ = ["make_callable"]


class _CallableModule(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _function(self)(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The function's, which is what ``inspect``, notebooks and editors show."""
        return inspect.signature(_function(self))


def _function(module: types.ModuleType) -> Any:
    return vars(module)[module.__name__.rpartition(".")[2]]


def make_callable(name: str) -> None:
    """Let the package ``a.b.name`` be called: it calls its own function ``name``, whose signature and text it shows.

    The room card is for those who read the package's source; whoever asks for help wants to call it.
    """
    module = sys.modules[name]
    module.__class__ = _CallableModule
    module.__doc__ = _function(module).__doc__
