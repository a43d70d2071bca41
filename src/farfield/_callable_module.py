"""A package that is also its main function: ``farfield.audit(model, x)`` beside ``farfield.audit.rule("FF001")``.

Importing ``farfield.audit`` binds the *package* to the name ``audit`` of the root, whatever stood there before, so a
function re-exported under the same name would stop being callable as soon as anybody imported the package. Making
the package callable removes the race.
"""

from __future__ import annotations

import sys
import types
from typing import Any

__all__ = ["make_callable"]


class _CallableModule(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(self)[self.__name__.rpartition(".")[2]](*args, **kwargs)


def make_callable(name: str) -> None:
    """Let the package ``a.b.name`` be called: it calls its own function ``name``."""
    sys.modules[name].__class__ = _CallableModule
