"""How far a captured graph is taken apart: torch's own table, less what is registered, plus what torch lacks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from farfield.graph.operators import registered_targets

__all__ = ["decomposition_table", "own_decomposition", "single_decompositions"]


def decomposition_table() -> Any:
    """Torch's decompositions without those of registered targets, so that what farfield knows stays whole."""
    known = registered_targets()
    table = torch.export.default_decompositions()
    for key in list(table):
        if str(key) in known:
            del table[key]
    table.update({key: rule for key, rule in _OWN.items() if str(key) not in known})
    return table


def single_decompositions() -> dict[Any, Callable[..., Any]]:
    """The same for a call by itself, as a plain dictionary: torch's part is made once in a process."""
    known = registered_targets()
    return {k: rule for k, rule in {**_torchs_own(), **_OWN}.items() if str(k) not in known}


def own_decomposition(target: Any) -> Callable[..., Any] | None:
    """What farfield makes of a call that torch itself would take apart further than needed."""
    return None if str(target) in registered_targets() else _OWN.get(target)


@functools.cache
def _torchs_own() -> Mapping[Any, Callable[..., Any]]:
    return dict(torch.export.default_decompositions().items())


def _bilinear(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    outer = (first.unsqueeze(-1) * second.unsqueeze(-2)).flatten(-2)
    return torch.nn.functional.linear(outer, weight.flatten(1), bias)


def _pairwise_distance(
    first: Tensor, second: Tensor, p: float = 2.0, compute_mode: int | None = None
) -> Tensor:
    distance: Tensor = torch.linalg.vector_norm(first.unsqueeze(-2) - second.unsqueeze(-3), p, -1)
    return distance


def _normal(mean: Tensor, std: Tensor, *, generator: Any = None) -> Tensor:
    return mean + std * torch.randn_like(mean + std)


_OWN: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.bilinear.default: _bilinear,
    torch.ops.aten.cdist.default: _pairwise_distance,
    torch.ops.aten._cdist_forward.default: _pairwise_distance,
    torch.ops.aten._euclidean_dist.default: _pairwise_distance,
    torch.ops.aten.normal.Tensor_Tensor: _normal,
    torch.ops.aten.normal_functional.default: lambda x, mean=0.0, std=1.0, *, generator=None: (
        mean + std * torch.randn_like(x)
    ),
}
