"""Images with random labels: how well a linear classifier fits them, and networks without an activation function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from farfield.data import load
from farfield.learn import Training, predict_all, train
from farfield.lnnet import trainable
from farfield.papers._experiment import Progress

__all__ = [
    "Fitted",
    "RandomLabels",
    "fit",
    "linear_accuracy",
    "linear_ceiling",
    "load_problem",
    "shifted",
    "shrunk",
]

CLASSES = 10


@dataclass(frozen=True)
class RandomLabels:
    """Images of one dataset for several seeds, each seed with images and random labels of its own."""

    name: str
    x: Tensor
    """(seeds × images, features), the images of the first seed first; whitened for each seed apart."""
    y: Tensor
    rows: Tensor
    """(seeds, images): which rows belong to a seed."""

    def part(self, k: int) -> tuple[Tensor, Tensor]:
        """Images and labels of one seed."""
        return self.x[self.rows[k]], self.y[self.rows[k]]


def shrunk(images: np.ndarray, size: int) -> Tensor:
    """Means over blocks of pixels, (n, features) in [0, 1]: grayscale (n, h, w) or color (n, h, w, 3), uint8.

    Examples
    --------
    >>> shrunk(np.full((2, 4, 4, 3), 255, dtype=np.uint8), 2).shape
    torch.Size([2, 12])
    """
    values = torch.from_numpy(np.array(images)).float() / 255
    planes = values[:, None] if values.ndim == 3 else values.permute(0, 3, 1, 2)
    return F.adaptive_avg_pool2d(planes, size).flatten(1)


def whitened(x: Tensor) -> Tensor:
    """Centered, and mapped linearly such that all directions have variance 1; directions without any stay 0.

    The map is linear, and invertible on the directions that vary: a network that begins with a linear layer
    can express what it could before.
    """
    basis, spread, _ = torch.linalg.svd(x.double() - x.double().mean(0), full_matrices=False)
    return torch.where(spread > 1e-6 * spread[0], basis * len(x) ** 0.5, 0.0).to(x.dtype)


def load_problem(name: str, *, images: int, size: int, seeds: Sequence[int]) -> RandomLabels:
    """Random training images of a dataset, shrunk to size × size, with labels drawn uniformly from ten."""
    pool = load(name).train.x
    xs, ys = [], []
    for seed in seeds:
        draw = np.random.default_rng([seed, 17])
        chosen = draw.choice(len(pool), images, replace=False)
        xs.append(whitened(shrunk(pool[np.sort(chosen)], size)))
        ys.append(torch.from_numpy(draw.integers(0, CLASSES, images)))
    rows = torch.arange(len(seeds) * images).reshape(len(seeds), images)
    return RandomLabels(name, torch.cat(xs), torch.cat(ys), rows)


def linear_accuracy(x: Tensor, y: Tensor, classes: int = CLASSES) -> dict[str, float]:
    """Training accuracy of two linear classifiers, each at the minimum of its loss, and what shows that it is.

    Softmax regression by up to 5000 steps of L-BFGS in float64, and least squares on indicators in closed form.
    Accuracy itself can't be maximized in reasonable time: another linear classifier may do a little better.

    Returns
    -------
    dict
        ``softmax`` and ``least_squares``, accuracies; ``gradient``, the largest entry of softmax regression's.
    """
    inputs = torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], 1)
    weights = torch.zeros(inputs.shape[1], classes, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS(
        [weights], max_iter=5000, history_size=30, tolerance_grad=1e-9, tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        search.zero_grad()
        value = F.cross_entropy(inputs @ weights, y)
        value.backward()
        return value

    search.step(loss)
    loss()
    assert weights.grad is not None
    solved = torch.linalg.lstsq(inputs, F.one_hot(y, classes).double(), driver="gelsd").solution

    def share(w: Tensor) -> float:
        return float(((inputs @ w).argmax(1) == y).double().mean())

    return {
        "softmax": share(weights.detach()),
        "least_squares": share(solved),
        "gradient": float(weights.grad.abs().max()),
    }


def linear_ceiling(found: Sequence[dict[str, float]]) -> Tensor:
    """The better of the two linear classifiers of :func:`linear_accuracy`, for every problem."""
    return torch.tensor([max(v["softmax"], v["least_squares"]) for v in found], dtype=torch.float64)


def shifted(progress: Progress, before: int, total: int) -> Progress:
    """The progress of one piece of a longer run."""
    return lambda done, _: progress(before + done, total)


@dataclass(frozen=True)
class Fitted:
    """Networks of one kind after training, one for every seed."""

    models: tuple[nn.Module, ...]
    accuracy: Tensor
    """On the training images, (seeds,)."""
    losses: Tensor
    """By epoch, (epochs, seeds)."""


def fit(
    problem: RandomLabels,
    *,
    groups: int,
    depth: int,
    width: int,
    training: Training,
    seeds: Sequence[int],
    scratch: Path,
    progress: Progress,
) -> Fitted:
    """Train one network for every seed on its images and random labels, all together."""
    features = problem.x.shape[1]
    models = [
        trainable(features, CLASSES, width=width, depth=depth, groups=groups, seed=seed) for seed in seeds
    ]
    name = f"{problem.name}-{groups}-{depth}-{width}-{training.epochs}"
    done = train(
        models, problem.x, problem.y, training=training, seeds=list(seeds), rows=problem.rows,
        checkpoint=scratch / name, progress=progress,
    )  # fmt: skip
    predicted = predict_all(done.models, problem.x, rows=problem.rows).argmax(-1)
    right = predicted == problem.y[problem.rows]
    return Fitted(done.models, right.double().mean(1), done.losses)
