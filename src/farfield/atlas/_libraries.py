"""The libraries of the atlas by name: what each holds, and how one of its architectures is built."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

from torch import nn

from farfield.atlas._architecture import Architecture
from farfield.errors import UnknownNameError

__all__ = ["LIBRARIES", "architectures", "build", "installed_libraries"]

LIBRARIES: dict[str, tuple[str, str]] = {
    "stable_baselines3": ("stable_baselines3", "_stable_baselines3"),
    "neuraloperator": ("neuralop", "_neuraloperator"),
    "rtdl_revisiting_models": ("rtdl_revisiting_models", "_tabular"),
    "tabm": ("tabm", "_tabular"),
    "pytorch_tabnet": ("pytorch_tabnet", "_tabular"),
    "diffusers": ("diffusers", "_diffusers"),
    "torch_geometric": ("torch_geometric", "_torch_geometric"),
    "transformers": ("transformers", "_transformers"),
    "timm": ("timm", "_timm"),
}
"""Distribution → the module it is imported as, and the file here that knows it."""


def _room(library: str) -> Any:
    if library not in LIBRARIES:
        raise UnknownNameError("library of the atlas", library, list(LIBRARIES))
    return importlib.import_module(f"farfield.atlas.{LIBRARIES[library][1]}")


def installed_libraries() -> list[str]:
    """The libraries that are here."""
    return [name for name, (module, _) in LIBRARIES.items() if importlib.util.find_spec(module)]


def architectures(library: str) -> Iterator[Architecture]:
    """Every architecture of a library; nothing is built."""
    room = _room(library)
    several = hasattr(room, "architectures_of")
    yield from room.architectures_of(library) if several else room.architectures()


def build(library: str, name: str, family: str) -> tuple[nn.Module, Any]:
    """A model with random weights in eval mode, and inputs that it runs on."""
    room = _room(library)
    several = hasattr(room, "build_of")
    model, inputs = room.build_of(library, name, family) if several else room.build(name, family)
    return model.eval(), inputs
