"""The architectures of timm: of every file of models, the smallest one that its names tell."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from farfield.atlas._architecture import Architecture, NotBuiltError
from farfield.errors import MissingExtraError

__all__ = ["architectures", "build"]

_SIZES = (
    "test",
    "atto",
    "femto",
    "pico",
    "nano",
    "tiny",
    "_xxs",
    "_xs",
    "xxtiny",
    "_s0",
    "_t",
    "small",
    "_b0",
    "18",
    "_s",
)
PIXELS = (64, 96, 128, 224)
LARGEST = 20_000_000


def library() -> Any:
    """The package itself."""
    try:
        import timm
    except ImportError as error:
        raise MissingExtraError("The atlas of timm", "timm", "timm") from error
    return timm


def architectures() -> Iterator[Architecture]:
    """One per file of the library."""
    timm = library()
    for module in sorted(timm.list_modules()):
        names = [n for n in timm.list_models(module=module) if "test" not in n]
        if names:
            yield Architecture("timm", min(names, key=_rank), module, "image classification")


def _rank(name: str) -> tuple[int, int, str]:
    place = next((k for k, size in enumerate(_SIZES) if size in name), len(_SIZES))
    number = int(next(iter(re.findall(r"\d+", name)), "0"))
    return place, number, name


def build(name: str, family: str) -> tuple[nn.Module, Any]:
    """The model without pretrained weights, and the smallest image that it takes."""
    timm = library()
    said = ""
    for side in PIXELS:
        for options in ({"img_size": side}, {}):
            try:
                torch.manual_seed(0)
                model = timm.create_model(name, pretrained=False, num_classes=3, **options).eval()
                count = sum(p.numel() for p in model.parameters())
                if count > LARGEST:
                    raise NotBuiltError(f"Its smallest variant, {name}, has {count:,} parameters.")
                first = next(iter(inspect.signature(model.forward).parameters))
                image = torch.randn(2, 3, side, side)
                with torch.no_grad():
                    model(image)
            except NotBuiltError:
                raise
            except Exception as error:
                said = said or f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            else:
                return model, {first: image}
    raise NotBuiltError(said)
