"""A Sequential that can be subclassed with a constructor of its own."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

__all__ = ["Chain"]


class Chain(nn.Sequential):
    """A Sequential whose slices are plain Sequentials: torch would call the subclass's own constructor."""

    def __getitem__(self, idx: slice | int) -> nn.Sequential | nn.Module:
        """One module, or a slice under the names it has here, sharing its parameters."""
        if isinstance(idx, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[idx]))
        return super().__getitem__(idx)
