"""Where a search for growth looks: directions of the moving inputs, and the model's inputs along them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from farfield.graph import InputSpec, Program, SymbolicSize
from farfield.growth._analysis import Analysis
from farfield.growth._evaluate import Evaluator

__all__ = ["Search", "unit"]


def unit(flat: Tensor) -> Tensor:
    """Rows scaled to length 1."""
    length: Tensor = torch.linalg.vector_norm(flat, dim=-1, keepdim=True)
    return flat / length.clamp_min(1e-300)


@dataclass(frozen=True)
class Search:
    """What a search for a witness needs: the program, where it starts from, and which inputs move.

    A direction is a row of numbers, the moving inputs flattened one after another. Where the batch axis is
    dynamic, directions are rows of one batch (``by_rows``); otherwise each is a whole input.
    """

    analysis: Analysis
    starts: tuple[Tensor, ...]
    moving: tuple[str, ...]
    output: int
    evaluator: Evaluator
    generator: torch.Generator
    notes: list[str] = field(default_factory=list)

    @property
    def program(self) -> Program:
        """The program under study."""
        return self.analysis.program

    @cached_property
    def by_rows(self) -> bool:
        """Every direction can be one row of a batch: its open axis is the output's too, and rows are samples."""
        specs = [spec for spec in self.program.inputs if spec.name in self.moving]
        first = {spec.shape[0] if spec.shape else None for spec in specs}
        output = self.program.outputs[self.output]
        axis = next(iter(first))
        if len(first) != 1 or not isinstance(axis, SymbolicSize):
            return False
        return self.evaluator.rows_are_samples(self.starts, str(axis), output)

    def shares_rows(self, spec: InputSpec) -> bool:
        """The input has the batch axis of those that move, and directions are rows of it."""
        axis = next(s.shape[:1] for s in self.program.inputs if s.name in self.moving)
        return self.by_rows and spec.shape[:1] == axis

    def _row_shape(self, start: Tensor) -> tuple[int, ...]:
        return tuple(start.shape[1:]) if self.by_rows else tuple(start.shape)

    @cached_property
    def size(self) -> int:
        """Numbers in one direction."""
        pairs = zip(self.program.inputs, self.starts, strict=True)
        return sum(math.prod(self._row_shape(start)) for spec, start in pairs if spec.name in self.moving)

    def split(self, flat: Tensor) -> list[Tensor | None]:
        """Rows of numbers as one tensor of directions per input; ``None`` for inputs that stand still."""
        result: list[Tensor | None] = []
        offset = 0
        for spec, start in zip(self.program.inputs, self.starts, strict=True):
            if spec.name not in self.moving:
                result.append(None)
                continue
            shape = self._row_shape(start)
            count = math.prod(shape)
            piece = flat[:, offset : offset + count].reshape(flat.shape[0], *shape)
            result.append(piece.to(start.device))
            offset += count
        return result

    def normal(self, count: int) -> Tensor:
        """Standard normal rows."""
        return torch.randn(count, self.size, generator=self.generator, dtype=torch.float64)

    def guesses(self) -> Iterator[Tensor]:
        """Directions to try, a few random ones first (one, for a large program): mostly any one will do."""
        if self.program.is_large:
            yield unit(self.normal(1))
            yield unit(self.normal(8))
            yield self.more_guesses()
        else:  # drawn at once, so that the next search begins with the same numbers whatever this one finds
            yield from (unit(self.normal(8)), self.more_guesses())

    def more_guesses(self) -> Tensor:
        """Many: random, sign patterns, coordinate axes both ways, all coordinates equal."""
        pieces = [self.normal(48 if self.by_rows else 16), self.normal(16).sign()]
        count = min(self.size, 32 if self.by_rows else 8)
        axes = torch.zeros(count, self.size, dtype=torch.float64)
        axes[torch.arange(count), torch.randperm(self.size, generator=self.generator)[:count]] = 1.0
        ones = torch.ones(1, self.size, dtype=torch.float64)
        return unit(torch.cat([*pieces, axes, -axes, ones, -ones]))

    def inputs_at(self, flat: Tensor, *radii: float) -> list[Tensor]:
        """The model's inputs along one direction: a batch with one row per radius, or the whole input at one."""
        tensors = []
        for spec, start, u in zip(self.program.inputs, self.starts, self.split(flat), strict=True):
            if u is not None:
                tensors.append(
                    torch.cat([radius * u for radius in radii]) if self.by_rows else radii[0] * u[0]
                )
                continue
            held = start.detach()
            if self.shares_rows(spec):
                held = held[:1].expand(len(radii), *held.shape[1:])
            tensors.append(held.to(torch.float64) if held.is_floating_point() else held)
        return tensors

    def entry(self, flat: Tensor, index: tuple[int, ...], radius: float) -> float:
        """One entry of the output at λu."""
        value = self.evaluator(self.inputs_at(flat, radius), self.output)
        return float(value[(0, *index)] if self.by_rows else value[index])

    def entries(self, flat: Tensor, index: tuple[int, ...], radii: Sequence[float]) -> Iterator[float]:
        """One entry of the output at several radii, as one batch; nothing where directions are whole inputs."""
        if self.by_rows and radii:
            values = self.evaluator(self.inputs_at(flat, *radii), self.output)
            yield from (float(row[index]) for row in values)
