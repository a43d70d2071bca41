"""The neural operators of neuraloperator, on a small grid."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from farfield.atlas._recipes import Recipes

__all__ = ["architectures", "build"]

_RECIPES = Recipes("neuraloperator")
architectures, build = _RECIPES.architectures, _RECIPES.build


def _fourier(name: str, **options: Any) -> tuple[nn.Module, Any]:
    from neuralop import models

    given = {
        "n_modes": (4, 4),
        "in_channels": 2,
        "out_channels": 1,
        "hidden_channels": 8,
        "n_layers": 2,
        **options,
    }
    return getattr(models, name)(**given), (torch.randn(2, 2, 8, 8),)


def _uno() -> tuple[nn.Module, Any]:
    from neuralop.models import UNO

    model = UNO(
        2,
        1,
        hidden_channels=8,
        lifting_channels=8,
        projection_channels=8,
        n_layers=3,
        uno_out_channels=[8, 8, 8],
        uno_n_modes=[[4, 4], [4, 4], [4, 4]],
        uno_scalings=[[1.0, 1.0], [0.5, 0.5], [2.0, 2.0]],
        channel_mlp_skip="linear",
    )
    return model, (torch.randn(2, 2, 8, 8),)


_RECIPES.add("FNO", "fourier", "operator learning", lambda: _fourier("FNO"))
_RECIPES.add(
    "FNO with instance_norm", "fourier", "operator learning", lambda: _fourier("FNO", norm="instance_norm")
)
_RECIPES.add(
    "FNO with group_norm", "fourier", "operator learning", lambda: _fourier("FNO", norm="group_norm")
)
_RECIPES.add(
    "FNO, stabilizer tanh", "fourier", "operator learning", lambda: _fourier("FNO", stabilizer="tanh")
)
_RECIPES.add("TFNO", "fourier", "operator learning", lambda: _fourier("TFNO"))
_RECIPES.add("SFNO", "spherical", "operator learning", lambda: _fourier("SFNO"))
_RECIPES.add("UNO", "fourier", "operator learning", _uno)
