"""What a loaded dataset is, and the split that holds out its far side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farfield.errors import InvalidValueError

__all__ = ["Dataset", "Part", "far_field_split"]

Array = NDArray[np.float64] | NDArray[np.uint8] | NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Inputs, one a row (an image keeps its axes), and their targets."""

    x: Array
    y: Array

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InvalidValueError(
                f"There is one target for every input; got {len(self.x)} inputs and {len(self.y)} targets."
            )

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Dataset:
    """A dataset, split.

    Parameters
    ----------
    name
        As in the catalogue.
    train
        To fit on.
    id
        Held out, from the same region as ``train``.
    ood
        Held out, from elsewhere; empty where the dataset has no such part.
    features, targets
        Names of the columns.
    split
        How it was split, in words.
    license, citation
        Whose it is.
    """

    name: str
    train: Part
    id: Part
    ood: Part
    features: tuple[str, ...]
    targets: tuple[str, ...]
    split: str
    license: str
    citation: str


def far_field_split(
    x: Array, y: Array, *, far: NDArray[np.bool_], share: float = 0.9, seed: int = 0
) -> tuple[Part, Part, Part]:
    """Train and in-distribution parts at random from the near rows, and the far rows apart.

    Parameters
    ----------
    x, y
        All rows.
    far
        Which rows are held out as the far side.
    share
        Of the near rows that go to training, rounded.
    seed
        Of the permutation.

    Examples
    --------
    >>> x = np.arange(10.0)[:, None]
    >>> train, near, ood = far_field_split(x, x[:, 0], far=x[:, 0] > 7, share=0.75)
    >>> len(train), len(near), ood.y.tolist()
    (6, 2, [8.0, 9.0])
    """
    if not 0 < share <= 1:
        raise InvalidValueError(f"The share that is trained on lies in (0, 1], got {share}.")
    near = np.flatnonzero(~far)
    order = np.random.default_rng(seed).permutation(near)
    count = round(share * len(near))
    train, held = order[:count], order[count:]
    return Part(x[train], y[train]), Part(x[held], y[held]), Part(x[far], y[far])
