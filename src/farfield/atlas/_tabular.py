"""Networks for tables: those of rtdl_revisiting_models, TabM and TabNet."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from farfield.atlas._recipes import Recipes

__all__ = ["architectures_of", "build_of"]

COLUMNS = 8


def _rtdl(name: str, **options: Any) -> tuple[nn.Module, Any]:
    import rtdl_revisiting_models

    return getattr(rtdl_revisiting_models, name)(d_in=COLUMNS, d_out=1, **options), (torch.randn(2, COLUMNS),)


def _ft_transformer() -> tuple[nn.Module, Any]:
    from rtdl_revisiting_models import FTTransformer

    backbone = FTTransformer.get_default_kwargs(n_blocks=1) | {"d_block": 16, "attention_n_heads": 2}
    model = FTTransformer(n_cont_features=COLUMNS, cat_cardinalities=[], d_out=1, **backbone)
    return model, {"x_cont": torch.randn(2, COLUMNS), "x_cat": None}


def _tabm() -> tuple[nn.Module, Any]:
    from tabm import TabM

    return TabM.make(n_num_features=COLUMNS, d_out=1, n_blocks=2, d_block=16, k=4), (torch.randn(2, COLUMNS),)


def _tabnet() -> tuple[nn.Module, Any]:
    from pytorch_tabnet.tab_network import TabNet

    return TabNet(COLUMNS, 1, n_d=4, n_a=4, n_steps=2, group_attention_matrix=torch.eye(COLUMNS)), (
        torch.randn(2, COLUMNS),
    )


_SIZES = {"n_blocks": 2, "d_block": 16}
_ALL = {name: Recipes(name) for name in ("rtdl_revisiting_models", "tabm", "pytorch_tabnet")}
_ALL["rtdl_revisiting_models"].add("MLP", "mlp", "tables", lambda: _rtdl("MLP", dropout=0.0, **_SIZES))
_ALL["rtdl_revisiting_models"].add(
    "ResNet",
    "resnet",
    "tables",
    lambda: _rtdl("ResNet", d_hidden_multiplier=2.0, dropout1=0.0, dropout2=0.0, **_SIZES),
)
_ALL["rtdl_revisiting_models"].add("FTTransformer", "ft-transformer", "tables", _ft_transformer)
_ALL["tabm"].add("TabM", "tabm", "tables", _tabm)
_ALL["pytorch_tabnet"].add("TabNet", "tabnet", "tables", _tabnet)


def architectures_of(library: str) -> Any:
    """Of one of the packages."""
    return _ALL[library].architectures()


def build_of(library: str, name: str, family: str) -> tuple[nn.Module, Any]:
    """A model of one of the packages."""
    return _ALL[library].build(name, family)
