"""Every specimen, by name."""

from __future__ import annotations

from zoo import (
    _models_attention,
    _models_buggy,
    _models_conv,
    _models_gates,
    _models_mlp,
    _models_recurrent,
    _models_residual,
    _models_rl,
    _models_science,
    _models_transformers,
)
from zoo._specimen import Specimen

__all__ = ["SPECIMENS", "by_name"]

_FILES = (
    _models_mlp,
    _models_residual,
    _models_conv,
    _models_recurrent,
    _models_attention,
    _models_transformers,
    _models_rl,
    _models_science,
    _models_gates,
    _models_buggy,
)

SPECIMENS: tuple[Specimen, ...] = tuple(s for module in _FILES for s in module.house.specimens)


def by_name(name: str) -> Specimen:
    """The specimen of that name."""
    return next(s for s in SPECIMENS if s.name == name)
