"""A repaired model from its weights: the file says which protections stood where, and how they were set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from farfield._regular_file import open_regular
from farfield._weights import put_weights, read_weights
from farfield.calibration import device_of
from farfield.errors import InvalidValueError, MissingExtraError
from farfield.graph import Runnable, as_module
from farfield.nn import FeatureClamp, NormCap, RangeHead
from farfield.repair._insert import OPTIONS, PREFIX, Insertion, Place, inserted_into
from farfield.repair._program import with_places

__all__ = ["restore"]


def restore(model: Runnable, path: str | Path) -> nn.Module:
    """The repaired model again, from the module it was made of and a file of its weights.

    Parameters
    ----------
    model
        The module as it was before the repair, with any weights: those of the file are loaded into a copy.
    path
        What :meth:`Repair.save` wrote to ``.safetensors`` or ``.pt``, or a checkpoint that ``torch.save`` made of the
        repaired model's ``state_dict()``. Read as data, without running anything in it.

    Returns
    -------
    nn.Module
        A copy with the protections in place, the same to the last bit as the model that was saved.

    Raises
    ------
    InvalidValueError
        If the file says nothing of protections: a plain state dict does not hold their settings.

    Examples
    --------
    >>> import tempfile
    >>> from farfield.repair import repair
    >>> model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)).eval()
    >>> fixed = repair(model, torch.randn(500, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fixed.save(f"{folder}/fixed.pt")
    ...     again = restore(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)), f"{folder}/fixed.pt")
    >>> bool((again(1e6 * torch.ones(1, 3)) == fixed.model(1e6 * torch.ones(1, 3))).all())
    True
    """
    path = Path(path)
    weights = read_weights(path)
    settings = _settings(path)
    made = as_module(model)
    home = device_of(made)
    insertions = tuple(setting.insertion(weights) for setting in settings)
    if isinstance(made, fx.GraphModule):
        made = with_places(made, [i.at for i in insertions if i.place == "hidden"])
    made = inserted_into(made, insertions)
    put_weights(made, weights)
    return made if home is None else made.to(home)


def _settings(path: Path) -> list[_Setting]:
    if path.suffix == ".safetensors":
        try:
            from safetensors import safe_open
        except ImportError as error:
            raise MissingExtraError("Reading safetensors", "safetensors", "certify") from error
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(PREFIX)
    else:
        with open_regular(path) as file:
            found = torch.load(file, map_location="cpu", weights_only=True)
        held = getattr(found, "_metadata", {})
        text = next((v.get("insertions") for k, v in held.items() if k.rpartition(".")[2] == PREFIX), None)
    if text is None:
        raise InvalidValueError(
            f"{str(path)!r} says nothing of protections. Repair.save writes their settings with the weights; of a "
            "repaired model's own state_dict(), torch.save keeps them too, but not dict(state_dict)."
        )
    try:
        return [_Setting(**entry) for entry in json.loads(text)]
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"What {str(path)!r} says of protections can't be read: {error}.") from error


@dataclass(frozen=True)
class _Setting:
    """One protection as a file describes it; checked, since a file is anybody's."""

    place: Place
    at: str
    kind: str
    key: str
    options: dict[str, Any]

    def __post_init__(self) -> None:
        known = self.place in ("input", "hidden", "output") and self.kind in {c.__name__ for c in OPTIONS}
        if not known or not isinstance(self.at, str) or not isinstance(self.options, dict):
            raise ValueError(f"a {self.kind!r} at {self.place!r} {self.at!r}")

    def insertion(self, weights: Mapping[str, Tensor]) -> Insertion:
        """With the numbers that stand among the weights under its name."""
        mark = f"{PREFIX}.{self.key}."
        own = {name.partition(mark)[2]: tensor for name, tensor in weights.items() if mark in name}
        try:
            return Insertion(self.place, self.at, self._module(own))
        except (KeyError, TypeError) as error:
            raise InvalidValueError(
                f"The file names a {self.kind} at {self.at!r} and does not hold all of it: {error}."
            ) from error

    def _module(self, own: Mapping[str, Tensor]) -> nn.Module:
        if self.kind == "FeatureClamp":
            return FeatureClamp(own["low"], own["high"], center=own["center"], **self.options)
        if self.kind == "NormCap":
            return NormCap(float(own["radius"]), center=own["center"], weight=own["weight"], **self.options)
        if self.kind == "RangeHead":
            return RangeHead(own["low"], own["high"], **self.options)
        return nn.LayerNorm(**self.options, dtype=own["weight"].dtype)
