"""A model from its ``config.json`` alone, and inputs for it: what a census needs to know of a library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from farfield.atlas._transformers import class_of, find_inputs, library
from farfield.errors import InvalidValueError

__all__ = ["inputs_of", "model_of"]

_LARGEST_RUN = 20_000_000
"""Parameters of a model that is run to see whether it takes an input."""


def model_of(settings: dict[str, Any]) -> nn.Module:
    """The model of a transformers configuration; its own code is never fetched or run.

    Raises
    ------
    InvalidValueError
        If the installed transformers does not know the class.
    """
    family, names = settings.get("model_type"), settings.get("architectures")
    mapping = library().CONFIG_MAPPING
    if not isinstance(family, str) or family not in mapping:
        raise InvalidValueError(
            f"config.json has model_type {family!r}, which transformers {library().__version__} does not know. "
            "Name a builder and its inputs in the registry."
        )
    if (
        not isinstance(names, list)
        or not names
        or not isinstance(names[0], str)
        or not names[0].isidentifier()
    ):
        raise InvalidValueError("config.json names no class: 'architectures' is a list with the name of one.")
    if settings.get("quantization_config"):
        raise InvalidValueError(
            "It is quantized: its layers are made when weights are loaded, not from config.json alone."
        )
    try:
        kind = class_of(names[0], family)
    except (AttributeError, ImportError) as error:
        raise InvalidValueError(f"transformers {library().__version__} has no class {names[0]!r}.") from error
    plain = {k: v for k, v in settings.items() if k not in ("torch_dtype", "dtype", "auto_map")}
    config = mapping[family].from_dict(plain)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    model: nn.Module = kind(config).float()
    return model


def inputs_of(model: Any) -> dict[str, Any]:
    """Inputs that the model runs on; a large one is not run, only the shapes are followed through it."""
    torch.manual_seed(0)
    large = sum(p.numel() for p in model.parameters()) > _LARGEST_RUN
    return find_inputs(model, model.config, _follow_shapes if large else None)


def _follow_shapes(model: nn.Module, inputs: dict[str, Any]) -> object:
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return model(
                **{k: mode.from_tensor(v) if isinstance(v, Tensor) else v for k, v in inputs.items()}
            )
    except (
        DataDependentOutputException
    ):  # its code asks for a value: there is no other way than to compute it
        return model(**inputs)
