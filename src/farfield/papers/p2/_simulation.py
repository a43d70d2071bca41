"""Random networks of finite width, run side by side on the same weights, their geometry recorded layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from farfield._intervals import student_quantile
from farfield.gaussian import Activation, activation
from farfield.geometry import feature_isometry_gap, gram, lyapunov
from farfield.nn import Center, MeanFieldCenter, MeanFieldProject, Project
from farfield.papers._experiment import Progress
from farfield.report import Series

__all__ = [
    "SIZES",
    "Layering",
    "PairedEnds",
    "Sizes",
    "Trace",
    "band",
    "chance_level",
    "degenerate_input",
    "from_law",
    "input_layer",
    "measured",
    "pair_numbers",
    "paired",
    "simulate",
]

SIZES = {"activations": ["relu", "tanh", "sigmoid", "exp"], "n": 10, "width": 1000, "depth": 30, "runs": 10}
"""Of the paper's simulations, where its text does not say otherwise."""
Part = Literal["none", "layer", "mean_field"]


@dataclass(frozen=True)
class Layering:
    """One layer of a random network: activation, centering, projection, and their order.

    ``order="post"`` is x ← project(center(σ(gain·Wx))), P2's; ``"pre"`` is x ← σ(project(center(gain·Wx))).
    """

    sigma: str
    center: Part = "layer"
    project: Part = "layer"
    order: Literal["post", "pre"] = "post"
    gain: float = 1.0

    def norms(self, sigma: Activation) -> list[nn.Module]:
        """The norm's two parts as modules."""
        q = self.gain**2
        centers: dict[str, list[nn.Module]] = {
            "none": [],
            "layer": [Center()],
            "mean_field": [MeanFieldCenter(sigma, variance=q)],
        }
        projects: dict[str, list[nn.Module]] = {
            "none": [],
            "layer": [Project()],
            "mean_field": [MeanFieldProject(sigma, variance=q)],
        }
        return [*centers[self.center], *projects[self.project]]


@dataclass(frozen=True)
class Trace:
    """Isometry gap and Lyapunov γ of one layering, shape (runs, depth + 1); layer 0 is the input. And the inputs.

    ``lengths`` is the part of the gap that unequal lengths of the rows make: log AM(a²)/GM(a²), which scaling every
    row to one length takes away exactly.
    """

    gap: Tensor
    gamma: Tensor
    inputs: tuple[Tensor, ...]
    lengths: Tensor | None = None


class Sizes(TypedDict):
    """What every experiment with random networks is told: arguments of :func:`simulate`."""

    n: int
    width: int
    depth: int
    degeneracy: float
    runs: int
    seed: int
    progress: Progress


def input_layer(rows: Tensor) -> Tensor:
    """LN(x − x̄) of every row, x⁰ of the paper's Eq. 1 up to √d."""
    projected: Tensor = Project()(Center()(rows))
    return projected


def degenerate_input(n: int, width: int, degeneracy: float, generator: torch.Generator) -> Tensor:
    """n Gaussian rows whose leading singular value is multiplied by ``degeneracy``, each row scaled to RMS one."""
    x = torch.randn(n, width, generator=generator, dtype=torch.float64)
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    s[0] *= degeneracy
    projected: Tensor = Project()((u * s) @ vt)
    return projected


def _mix(x: Tensor, noise: Tensor, sampler: str) -> Tensor:
    """X Wᵀ/√d with W Gaussian, d the features of X.

    ``"weights"``: ``noise`` is W itself. ``"law"``: with X = L Q, Q of orthonormal rows, Q Wᵀ is again an iid
    Gaussian matrix, of n rows only; ``noise`` is that matrix. The law of the result given X is the same, exactly, at
    n·width draws instead of width².
    """
    return x @ noise.T / math.sqrt(x.shape[1]) if sampler == "weights" else from_law(x, noise)


def from_law(x: Tensor, noise: Tensor) -> Tensor:
    """A draw of X Wᵀ/√d, W of independent standard Gaussian entries; ``noise`` has one row for each of X's."""
    r: Tensor = torch.linalg.qr(x.T, mode="r").R
    return r.T @ noise / math.sqrt(x.shape[1])


def simulate(
    layerings: Sequence[Layering],
    *,
    n: int,
    width: int,
    depth: int,
    degeneracy: float,
    runs: int,
    seed: int,
    progress: Progress,
    sampler: Literal["weights", "law"] = "weights",
    given: Sequence[Tensor] | None = None,
    start: int = 0,
    total: int | None = None,
) -> list[Trace]:
    """Run every layering on the same inputs and the same fresh weights at each layer, ``runs`` times, in float64.

    Inputs are those of :func:`degenerate_input`, or the ``given`` ones, a batch for each run.
    """
    sigmas = [activation(item.sigma) for item in layerings]
    norms = [nn.Sequential(*item.norms(s)) for item, s in zip(layerings, sigmas, strict=True)]
    gaps = torch.full((len(layerings), runs, depth + 1), torch.nan, dtype=torch.float64)
    gammas = torch.full_like(gaps, torch.nan)
    spreads = torch.full_like(gaps, torch.nan)
    inputs: list[Tensor] = []
    total = runs * depth if total is None else total
    for run in range(runs):
        generator = torch.Generator().manual_seed(1_000_003 * seed + 7919 * run + width)
        x0 = given[run] if given is not None else degenerate_input(n, width, degeneracy, generator)
        inputs.append(x0)
        states = [x0] * len(layerings)
        for layer in range(depth + 1):
            for k, state in enumerate(states):
                lengths = state.abs().amax(-1)
                if bool(torch.isfinite(lengths).all()) and float(lengths.min()) > 1e-150 * float(
                    lengths.max()
                ):
                    # Both are invariant under scaling; without it the squares of a diverging network overflow.
                    scaled = state / lengths.max()
                    gaps[k, run, layer] = feature_isometry_gap(scaled)
                    gammas[k, run, layer] = lyapunov(gram(scaled))
                    squares = scaled.square().mean(-1)
                    spreads[k, run, layer] = squares.mean().log() - squares.log().mean()
            if layer == depth:
                break
            # As many columns of W as units: the images of a first layer have another number of features.
            shape = (n, width) if sampler == "law" else (width, states[0].shape[1])
            noise = torch.randn(*shape, generator=generator, dtype=torch.float32).double()
            for k, (item, sigma) in enumerate(zip(layerings, sigmas, strict=True)):
                z = item.gain * _mix(states[k], noise, sampler)
                states[k] = norms[k](sigma(z)) if item.order == "post" else sigma(norms[k](z))
            progress(start + run * depth + layer + 1, total)
    return [Trace(gaps[k], gammas[k], tuple(inputs), spreads[k]) for k in range(len(layerings))]


def band(samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Geometric mean over runs (first axis) and its 95% interval: t-interval of the logarithms."""
    runs = samples.shape[0]
    logs = torch.log(samples)
    center = logs.mean(0)
    if runs < 2:
        return samples[0], samples[0], samples[0]
    half = student_quantile(0.975, runs - 1) * logs.std(0) / math.sqrt(runs)
    return torch.exp(center), torch.exp(center - half), torch.exp(center + half)


def chance_level(n: int, width: int, strength: float, depth: int) -> Tensor:
    r"""Isometry gap that finite width adds to the mean field after 0 … depth layers, to first order.

    Each layer adds independent noise of variance 1/d to every correlation and shrinks the noise it inherits by
    2 − β; the gap is (n−1)/2 times their variance: (n−1)/2d · Σ_{k<ℓ} (2−β)^{2k}.
    """
    powers = (2.0 - strength) ** (2.0 * torch.arange(depth, dtype=torch.float64))
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), powers.cumsum(0)])
    return (n - 1) / (2.0 * width) * sums


@dataclass(frozen=True)
class PairedEnds:
    """Two gaps at the last layer: geometric means over the runs in which each is finite, ∞ if there is none.

    ``lost``: for either, the runs in which it is not finite, as the rows became parallel or the network overflowed.
    """

    first: float
    second: float
    runs: int
    lost: tuple[int, int]

    def words(self, first: str, second: str) -> str:
        """What was measured, in one line."""
        pairs = zip((first, second), (self.first, self.second), self.lost, strict=True)
        return ", ".join(
            f"{name} {value:.3g}" + (f" (not finite in {gone} of {self.runs} runs)" if gone else "")
            for name, value, gone in pairs
        )


def paired(first: Tensor, second: Tensor) -> PairedEnds:
    """Compare two sets of gaps, (runs, depth + 1), at their last layer."""
    kept = [v[:, -1][torch.isfinite(v[:, -1])] for v in (first, second)]
    means = [float(v.log().mean().exp()) if len(v) else math.inf for v in kept]
    return PairedEnds(means[0], means[1], len(first), (len(first) - len(kept[0]), len(second) - len(kept[1])))


def pair_numbers(first: Tensor, second: Tensor, names: tuple[str, str]) -> dict[str, list[float]]:
    """Plain data of two measured curves: means by layer, and the last layer of every run."""
    out = {}
    for name, gaps in zip(names, (first, second), strict=True):
        out[name] = band(gaps)[0].tolist()
        out[f"{name}, last layer by run"] = gaps[:, -1].tolist()
    return out


def measured(label: str, samples: Tensor, color: int) -> Series:
    """A measured curve over layers 0, 1, … with its 95% band."""
    center, low, high = band(samples)
    layers = tuple(float(v) for v in range(samples.shape[1]))
    return Series(
        label, layers, tuple(center.tolist()), tuple(low.tolist()), tuple(high.tolist()), "line", color
    )
