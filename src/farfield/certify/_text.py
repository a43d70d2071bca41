"""A certificate's numbers as text: for files, and for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from farfield._text import clean

__all__ = ["digits", "entry", "escaped", "plain_data", "power", "ratio", "revived"]


def plain_data(value: Any) -> Any:
    """Numbers, lists and tables that JSON can hold; infinities as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Tensor):
        return plain_data(value.tolist())
    if isinstance(value, Mapping):
        return {str(k): plain_data(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [plain_data(v) for v in value]
    return value


def revived(value: Any) -> Any:
    """The inverse of ``plain_data`` on numbers."""
    if isinstance(value, str):
        return float(value) if value in ("inf", "-inf", "nan") else value
    if isinstance(value, dict):
        return {k: revived(v) for k, v in value.items()}
    if isinstance(value, list):
        return [revived(v) for v in value]
    return value


def entry(output: str, place: int, shape: torch.Size) -> str:
    """``output[0, 3]``: the name of a flat place."""
    index = []
    for size in reversed(shape):
        place, here = divmod(place, size)
        index.append(str(here))
    return f"{output}[{', '.join(reversed(index))}]" if index else output


def digits(value: float, direction: int) -> str:
    """Six digits, rounded down (−1) or up (1), so that what is printed is still true."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    text = f"{value:.6g}"
    if (float(text) - value) * direction < 0:
        step = 10.0 ** (math.floor(math.log10(abs(value))) - 5)
        text = f"{value + direction * step:.6g}"
    return text


def power(value: float) -> str:
    """``1e20``, where Python would write 1e+20."""
    return f"{value:.0e}".replace("e+", "e")


def ratio(value: float) -> str:
    """Three decimals, rounded up so that a tightness does not flatter."""
    return f"{math.ceil(value * 1000 - 1e-9) / 1000:g}" if value < 1000 else f"{value:.3g}"


def escaped(text: str) -> str:
    """For Markdown."""
    return "".join(f"\\{c}" if c in "\\`*_<>|[]" else c for c in clean(text))
