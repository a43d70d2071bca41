"""Networks of P2 on images: the data they read, their training, and the gap after every part of every layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from farfield.data import load
from farfield.errors import InvalidValueError, UnknownNameError
from farfield.geometry import gram, isometry_gap, record_isometry
from farfield.nn import MLP, Center
from farfield.papers.p2._simulation import input_layer

__all__ = ["PARTS", "Images", "Stages", "accuracy", "floor", "images", "network", "stages", "taken_apart"]

PARTS = ("linear", "activation", "centering", "projection")
"""What a layer does, in order: x ← project(center(σ(Wx)))."""


@dataclass(frozen=True)
class Images:
    """Images as rows of numbers, every color at mean 0 and variance 1 over the training images that are read.

    ``x``, ``y``: training rows and classes. ``held_out``, ``held_out_y``: rows of the test set.
    """

    x: Tensor
    y: Tensor
    held_out: Tensor
    held_out_y: Tensor


def images(name: str, *, rows: int | None, held_out: int, input_norm: str, seed: int) -> Images:
    """The first ``rows`` of a random order of the training images (all if None) and ``held_out`` test images.

    ``input_norm``: "layer" sends every row through the paper's LayerNorm of inputs, "none" leaves it.
    """
    if input_norm not in ("layer", "none"):
        raise UnknownNameError("norm of the inputs", input_norm, ("layer", "none"))
    data = load(name)
    order = np.random.default_rng([seed, 0]).permutation(len(data.train.x))[:rows]
    others = np.random.default_rng([seed, 1]).permutation(len(data.id.x))[:held_out]
    x, apart = data.train.x[order], data.id.x[others]
    axes = (0, 1, 2) if x.ndim == 4 else None  # all but the last, where there are colors
    values = x.astype(np.float32)
    mean, spread = values.mean(axes), values.std(axes)

    def flat(part: NDArray[np.generic]) -> Tensor:
        scaled = (part.astype(np.float32) - mean) / spread
        flattened = torch.from_numpy(scaled.reshape(len(part), math.prod(part.shape[1:])))
        return input_layer(flattened) if input_norm == "layer" else flattened

    labels = (torch.from_numpy(part.y[chosen]) for part, chosen in ((data.train, order), (data.id, others)))
    return Images(flat(x), next(labels), flat(apart), next(labels))


def network(features: int, activation: str, width: int | Sequence[int], depth: int | None, seed: int) -> MLP:
    """P2's: weights N(0, 1/fan_in), no bias, LayerNorm without affine after the activation; ten outputs."""
    return MLP(
        features, 10, width=width, depth=depth, activation=activation, norm="layer", order="post",
        parametrization="mean_field", generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def taken_apart(model: MLP) -> nn.Sequential:
    """The hidden layers, with a centering of its own before each LayerNorm, which then only projects.

    LayerNorm centers what is centered already: the function is the same.
    """
    parts: list[nn.Module] = []
    for module in list(model)[:-1]:
        parts += [Center(), module] if isinstance(module, nn.LayerNorm) else [module]
    return nn.Sequential(*parts)


@dataclass(frozen=True)
class Stages:
    """Isometry gaps of one batch through a network.

    Parameters
    ----------
    start
        Gap of the input.
    gaps
        After every part of every layer, shape (depth, 4), in the order of :data:`PARTS`.
    """

    start: float
    gaps: Tensor

    def curve(self) -> tuple[Tensor, Tensor]:
        """Positions 0, ¼, … depth, and the gaps there: whole numbers are outputs of LayerNorms."""
        at = torch.arange(self.gaps.numel() + 1, dtype=torch.float64) / len(PARTS)
        return at, torch.cat([torch.tensor([self.start], dtype=torch.float64), self.gaps.flatten()])

    @property
    def norms(self) -> Tensor:
        """After every LayerNorm, (depth,)."""
        return self.gaps[:, 3]

    def raised(self, part: str) -> Tensor:
        """By how much ``"centering"``, ``"projection"`` or both (``"norm"``) raise the gap, (depth,)."""
        before, after = {"centering": (1, 2), "projection": (2, 3), "norm": (1, 3)}[part]
        return self.gaps[:, after] - self.gaps[:, before]


def stages(model: MLP, batch: Tensor) -> Stages:
    """One pass in float64, so that rounding is far below every gap. The batch has at most as many rows as a layer is
    wide: more always have a singular Gram matrix.
    """
    widths = [m.out_features for m in list(model)[:-1] if isinstance(m, nn.Linear)]
    if len(batch) >= min(widths):
        raise InvalidValueError(
            f"{len(batch)} rows centered in {min(widths)} dimensions always have a gap of ∞: take fewer rows."
        )
    apart = taken_apart(model).to(torch.float64)
    x = batch.double()
    try:
        record = record_isometry(apart, x)
    finally:
        model.to(batch.dtype)  # the parts are shared with the model
    return Stages(float(isometry_gap(gram(x))), record.gaps.reshape(len(widths), len(PARTS)))


def floor(n: int, width: int) -> float:
    """Gap of n independent Gaussian rows in ``width`` dimensions, n < width, both large (Marchenko and Pastur's law).

    With c = n/width: 1 + (1 − c)/c · log(1 − c). What rows that are orthogonal at infinite width show at this one.

    Examples
    --------
    >>> round(floor(500, 1000), 4)
    0.3069
    """
    c = n / width
    return 1.0 + (1.0 - c) / c * math.log1p(-c)


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of the rows whose class has the largest output."""
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())
