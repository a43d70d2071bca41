"""The layers and models of PyTorch Geometric, on a fixed small graph: the question is asked of node features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from farfield.atlas._recipes import Recipes

__all__ = ["architectures", "build"]

_RECIPES = Recipes("torch_geometric")
architectures, build = _RECIPES.architectures, _RECIPES.build
NODES, WIDTH = 6, 8
_MODELS: dict[str, dict[str, Any]] = {name: {} for name in ("GCN", "GraphSAGE", "GIN", "GAT", "EdgeCNN")} | {
    "PNA": {"aggregators": ["mean", "max"], "scalers": ["identity"], "deg": torch.tensor([0, 0, 6])}
}
_LAYERS: dict[str, dict[str, Any]] = {
    "AGNNConv": {"sizes": False},
    "APPNP": {"sizes": False, "K": 2, "alpha": 0.1},
    "ARMAConv": {},
    "AntiSymmetricConv": {"sizes": False, "in_channels": WIDTH},
    "CGConv": {"sizes": False, "channels": WIDTH},
    "ChebConv": {"K": 2},
    "ClusterGCNConv": {},
    "EGConv": {},
    "FeaStConv": {},
    "FiLMConv": {},
    "GATConv": {},
    "GATv2Conv": {},
    "GCNConv": {},
    "GENConv": {},
    "GatedGraphConv": {"sizes": False, "out_channels": WIDTH, "num_layers": 2},
    "GeneralConv": {},
    "GraphConv": {},
    "LEConv": {},
    "LGConv": {"sizes": False},
    "MFConv": {},
    "MixHopConv": {},
    "ResGatedGraphConv": {},
    "SAGEConv": {},
    "SGConv": {"K": 2},
    "SSGConv": {"alpha": 0.1, "K": 2},
    "SimpleConv": {"sizes": False},
    "SuperGATConv": {},
    "TAGConv": {},
    "TransformerConv": {},
}


class _OnGraph(nn.Module):
    """A model of node features, on one graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        around = torch.arange(NODES)
        ahead = (around + 1) % NODES
        self.register_buffer("edges", torch.stack([torch.cat([around, ahead]), torch.cat([ahead, around])]))

    def forward(self, x: Tensor) -> Any:
        found = self.model(x, self.edges)
        return found[0] if isinstance(found, tuple) else found


def _model(name: str, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    from torch_geometric.nn import models

    made = getattr(models, name)(
        in_channels=WIDTH, hidden_channels=16, num_layers=2, out_channels=3, **options
    )
    return _OnGraph(made), (torch.randn(NODES, WIDTH),)


def _layer(name: str, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    from torch_geometric.nn import conv

    given = {k: v for k, v in options.items() if k != "sizes"}
    sizes = (WIDTH, 16) if options.get("sizes", True) else ()
    return _OnGraph(getattr(conv, name)(*sizes, **given)), (torch.randn(NODES, WIDTH),)


for _name, _options in _MODELS.items():
    _RECIPES.add(_name, "model", "graphs", lambda n=_name, o=_options: _model(n, o))  # type: ignore[misc]
for _name, _options in _LAYERS.items():
    _RECIPES.add(_name, "layer", "graphs", lambda n=_name, o=_options: _layer(n, o))  # type: ignore[misc]
