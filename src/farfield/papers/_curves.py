"""Curves as the records of experiments keep them, and how fast they grow."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

__all__ = ["digits", "exponent"]


def digits(values: Tensor | Iterable[float]) -> tuple[float, ...]:
    """To four digits: enough for a picture, and a file of readable size."""
    plain: Iterable[float] = values.tolist() if isinstance(values, Tensor) else values
    return tuple(float(f"{float(v):.4g}") for v in plain)


def exponent(x: Tensor, y: Tensor) -> float:
    """Slope of log y against log x, by least squares.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    >>> round(exponent(x, 3 * x**2), 12)
    2.0
    """
    u, v = x.log() - x.log().mean(), y.log() - y.log().mean()
    return float((u * v).sum() / (u * u).sum())
