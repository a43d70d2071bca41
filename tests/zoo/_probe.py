"""Independent evidence: the model itself, in float64, evaluated far away. Shares no code with the audit."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["RADII", "Runner", "check_growth", "check_plateau", "probe"]

RADII = tuple(10.0**k for k in range(-1, 9))
NEAR = 5
"""The first radii, up to 1e3: a bounded model has shown its size by then."""
RATE_TOLERANCE = 1e-4


class Runner:
    """The model in float64, from the list of its tensor inputs to the list of its tensor outputs."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self.model, self.inputs = copy.deepcopy(model).double().eval(), inputs
        self.examples = [t for t in tree_leaves(inputs) if isinstance(t, Tensor)]
        self.examples = [t.double() if t.is_floating_point() else t for t in self.examples]

    @torch.no_grad()
    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Every tensor the model returns."""
        queue = list(tensors)
        filled = tree_map(lambda leaf: queue.pop(0) if isinstance(leaf, Tensor) else leaf, self.inputs)
        result = self.model(**filled) if isinstance(filled, dict) else self.model(*filled)
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def probe(
    runner: Runner, *, batched: bool, moving: int | None = None, count: int = 64, seed: int = 7
) -> Tensor:
    """Smallest and largest value per radius and output, over many directions: shape (radii, outputs, 2).

    Directions are normal, signs and single coordinates; every other normal one moves one input only.

    Parameters
    ----------
    batched
        Directions can be rows of one batch.
    moving
        The only input that moves; all by default.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = _directions(runner.examples, batched, moving, count, generator)
    table = []
    for radius in RADII:
        if batched:
            table.append(_range(runner(_at(runner.examples, rows, radius, None))))
        else:
            singles = [_range(runner(_at(runner.examples, rows, radius, k))) for k in range(count)]
            table.append(_merged(torch.stack(singles)))
    return torch.stack(table)


def _directions(
    examples: Sequence[Tensor], batched: bool, moving: int | None, count: int, generator: torch.Generator
) -> list[Tensor | None]:
    shapes = [
        tuple(t.shape[1:] if batched else t.shape) if t.is_floating_point() and moving in (None, i) else None
        for i, t in enumerate(examples)
    ]
    sizes = [math.prod(s) if s is not None else 0 for s in shapes]
    total = sum(sizes)
    if total == 0:
        return [None for _ in examples]
    flat = torch.randn(count, total, generator=generator, dtype=torch.float64)
    signs, axes = slice(count // 2, 3 * count // 4), slice(3 * count // 4, count)
    flat[signs] = flat[signs].sign()
    flat[axes] = 0.0
    hot = torch.randint(total, (count - axes.start,), generator=generator)
    flat[torch.arange(axes.start, count), hot] = 1.0 - 2.0 * (torch.arange(count - axes.start) % 2).double()
    flat[signs.start] = 1.0
    pieces = list(flat.split([s for s in sizes if s], -1))
    if len(pieces) > 1:
        for k in range(0, 3 * count // 4, 4):
            for i, piece in enumerate(pieces):
                if i != (k // 4) % len(pieces):
                    piece[k] = 0.0
    length = torch.cat(pieces, -1).norm(dim=-1, keepdim=True)
    unit = iter([piece / length for piece in pieces])
    return [next(unit).reshape(count, *s) if s else None for s in shapes]


def _at(
    examples: Sequence[Tensor], rows: Sequence[Tensor | None], radius: float, only: int | None
) -> list[Tensor]:
    count = next((r.shape[0] for r in rows if r is not None), 1)
    tensors = []
    for example, row in zip(examples, rows, strict=True):
        if row is not None:
            tensors.append(radius * (row if only is None else row[only]))
        elif only is None and example.dim() and count > 1:
            tensors.append(example[torch.arange(count) % example.shape[0]])
        else:
            tensors.append(example)
    return tensors


def _range(outputs: Sequence[Tensor]) -> Tensor:
    """(outputs, 2): minimum and maximum; infinite where a value is not a number."""
    pairs = []
    for output in outputs:
        real = output.double()
        finite = bool(torch.isfinite(real).all())
        pairs.append([float(real.min()), float(real.max())] if finite else [-math.inf, math.inf])
    return torch.tensor(pairs, dtype=torch.float64)


def _merged(ranges: Tensor) -> Tensor:
    return torch.stack([ranges[..., 0].amin(0), ranges[..., 1].amax(0)], -1)


def check_plateau(table: Tensor, bound: float | None = None) -> str:
    """Empty if an output stays within ten times the size it shows near the origin (within ``bound``, if known).

    Parameters
    ----------
    table
        Shape (radii, 2), from :func:`probe`.
    """
    sizes = table.abs().amax(-1)
    near, far = float(sizes[:NEAR].max()), float(sizes[NEAR:].max())
    if bound is not None and not max(near, far) <= bound * (1.0 + 1e-9):
        return f"it reaches {max(near, far):.6g} and the proved bound is {bound:.6g}"
    if not far <= 10.0 * near + 1.0:
        return f"it reaches {far:.3g} far away and {near:.3g} near the origin"
    return ""


def check_growth(
    runner: Runner,
    names: Sequence[str],
    directions: Mapping[str, Tensor],
    output: int,
    index: tuple[int, ...],
    slope: float,
    degree: float,
    logarithms: float,
    last: float,
) -> str:
    """Empty if f(λu) grows at the claimed rate; otherwise what is measured instead.

    The rate is taken from differences of f between two radii, which a constant beside the growth does not disturb.
    """
    length = math.sqrt(sum(float(u.square().sum()) for u in directions.values()))
    if not math.isclose(length, 1.0, rel_tol=1e-9):
        return f"the direction has length {length}"

    def value(radius: float) -> float:
        tensors, by_rows = _along(runner.examples, names, directions, radius)
        found = runner(tensors)[output]
        return float(found[(0, *index) if by_rows else index])

    if math.isinf(degree):
        return _exponential(value, slope, last)

    def size(radius: float) -> float:
        return radius**degree * math.log(radius) ** logarithms

    seen = [value(radius) for radius in RADII[3:]]
    sizes = [abs(v) for v in seen]
    if not (sizes[-1] > sizes[-3] > sizes[-5] and math.isfinite(sizes[-1])):
        return f"|f| does not grow: {sizes}"
    # A kink at height b is passed at λ ~ b, or at e^b behind a logarithm: there one has to go further.
    errors = []
    for far in (1e8, 1e9, 1e10, 1e11) if degree > 0.0 else (1e8, 1e25, 1e50, 1e100, 1e150):
        rate = (value(far) - value(far / 100.0)) / (size(far) - size(far / 100.0))
        errors.append(abs(rate / slope - 1.0))
        if errors[-1] <= RATE_TOLERANCE:
            return ""
    return f"the claimed rate {slope} is off by {min(errors):.2g}"


def _exponential(value: Callable[[float], float], slope: float, last: float) -> str:
    """log |f| rises faster than any multiple of log λ, and log |f|/λ at the last radius is what was claimed."""
    logs = [math.log(abs(value(last / 2.0**k))) for k in (3, 2, 1, 0)]
    if not all(b > 1.5 * a > 0.0 for a, b in itertools.pairwise(logs)):
        return f"log |f| at doubling radii is {logs}: a power would do"
    measured = logs[-1] / last
    return (
        ""
        if abs(measured / slope - 1.0) <= RATE_TOLERANCE
        else f"measured log|f|/λ = {measured}, claimed {slope}"
    )


def _along(
    examples: Sequence[Tensor], names: Sequence[str], directions: Mapping[str, Tensor], radius: float
) -> tuple[list[Tensor], bool]:
    """Inputs at λu, and whether each is a batch of one row; inputs that rest stay at their first row."""
    pairs = list(zip(names, examples, strict=True))
    by_rows = all(directions[n].dim() == t.dim() - 1 for n, t in pairs if n in directions)
    batch = next(t.shape[0] for n, t in pairs if n in directions)
    tensors = []
    for name, example in pairs:
        if name in directions:
            u = radius * directions[name].double()
            tensors.append(u.unsqueeze(0) if by_rows else u)
        else:
            rests = by_rows and example.dim() > 0 and example.shape[0] == batch
            tensors.append(example[:1] if rests else example)
    return tensors, by_rows
