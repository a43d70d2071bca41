"""A verdict against the model itself, run in float64 out to 10⁶.

No BOUNDED may grow, and no UNBOUNDED be without a witness. The module is evaluated, never the captured program, and
nothing of the analysis is used but its claims.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from farfield.graph import call_model
from farfield.growth import GrowthReport, Status, Verdict, Witness

__all__ = ["EvaluationCheck", "check_verdicts"]

RADII = tuple(10.0**k for k in range(7))
NEAR = 4
"""The first radii, to 10³: most bounded models have shown their size by then."""
BEYOND = (1e8, 1e10, 1e12)
"""Where a model is followed that has not settled by 10⁶, or whose growth is small beside its values there."""
DIRECTIONS = 6
"""Batches of directions."""
SLACK = 1e-5
"""Of a proved range: constants are folded in the model's own float32."""
RATE = 0.02
"""Relative difference allowed between the claimed and the measured rate of growth."""


@dataclass(frozen=True, slots=True)
class EvaluationCheck:
    """What evaluation says of the verdicts.

    Parameters
    ----------
    holds
        None where nothing could be evaluated.
    said
        What was seen, in one line.
    """

    holds: bool | None
    said: str


class _Runner:
    """The module in float64; in its own type where it does not run in float64."""

    def __init__(self, model: nn.Module, inputs: Any, examples: Sequence[Tensor]) -> None:
        self.inputs = inputs
        self.examples = [t.double() if t.is_floating_point() else t for t in examples]
        self.said = "float64"
        try:
            self.model = copy.deepcopy(model).double().eval()
            self(self.examples)
        except Exception:
            self.model, self.said = model, "float32"
            self.examples = list(examples)

    @torch.no_grad()
    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return call_model(self.model, self.inputs, tensors)


def check_verdicts(
    model: nn.Module, inputs: Any, report: GrowthReport, examples: Sequence[Tensor]
) -> EvaluationCheck:
    """Evaluate the model along the witnesses of what is unbounded, and far out for what is bounded."""
    runner = _Runner(model, inputs, examples)
    names = [spec.name for spec in report.program.inputs]
    outputs = list(report.program.outputs)
    joint = [v for v in report.verdicts if v.input is None]
    try:
        if len(runner(runner.examples)) != len(outputs):
            return EvaluationCheck(None, "the module returns other tensors than its program")
        said = [_check_witness(runner, names, outputs, v.witness) for v in joint if v.witness is not None]
        missing = [v for v in joint if v.status is Status.UNBOUNDED and v.witness is None]
        bounded = [v for v in joint if v.status is Status.BOUNDED]
        real = [spec.kind == "real" for spec in report.program.inputs]
        if bounded and any(real):
            said.append(_check_bounded(runner, outputs, bounded, real))
    except Exception as error:
        first = str(error).strip().partition("\n")[0][:200]
        return EvaluationCheck(None, f"it could not be run far out: {type(error).__name__}: {first}")
    said += [f"!{v.output} has no witness" for v in missing]
    wrong = [s[1:] for s in said if s.startswith("!")]
    if wrong:
        return EvaluationCheck(False, "; ".join(wrong))
    if not said:
        return EvaluationCheck(
            None, "there is nothing to evaluate" if any(real) else "the model takes no real input"
        )
    return EvaluationCheck(True, f"{'; '.join(dict.fromkeys(said))} ({runner.said})")


def _check_bounded(
    runner: _Runner, outputs: Sequence[str], verdicts: Sequence[Verdict], real: Sequence[bool]
) -> str:
    places = [outputs.index(v.output) for v in verdicts]
    table = torch.stack([_sizes(runner, places, real, radius) for radius in RADII])
    for row, verdict in enumerate(verdicts):
        low, high = verdict.growth.interval
        if math.isfinite(low) and math.isfinite(high):
            slack = SLACK * max(1.0, abs(low), abs(high))
            if not (
                low - slack <= float(table[:, row, 0].min()) and float(table[:, row, 1].max()) <= high + slack
            ):
                return f"!{verdict.output} leaves the range that was proved, [{low:.6g}, {high:.6g}]"
    sizes = table.abs().amax(-1)
    near, far = sizes[:NEAR].amax(0), sizes[NEAR:].amax(0)
    if bool((far <= 10.0 * near + 1.0).all()):
        return f"bounded outputs stay within {float(sizes.max()):.3g} out to 1e6"
    later = torch.stack([_sizes(runner, places, real, radius) for radius in BEYOND]).abs().amax(-1)
    if bool((later[-1] <= 1.05 * later[-2] + 1.0).all()):
        return f"bounded outputs settle at {float(later.max()):.3g} beyond 1e6"
    worst = int((later[-1] / later[-2].clamp_min(1e-300)).argmax())
    reached, usual = float(later[-1, worst]), float(near[worst])
    return f"!{verdicts[worst].output} reaches {reached:.3g} at 1e12 and {usual:.3g} near 0"


def _sizes(runner: _Runner, places: Sequence[int], real: Sequence[bool], radius: float) -> Tensor:
    """(outputs, 2): smallest and largest value at this radius; infinite where one is not a number."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for number in range(DIRECTIONS):
        tensors = []
        moving = [k for k, moves in enumerate(real) if moves]
        for k, example in enumerate(runner.examples):
            if not real[k] or (number % 3 == 2 and k != moving[number // 3 % len(moving)]):
                tensors.append(example)
                continue
            u = torch.randn(example.shape, generator=generator, dtype=torch.float64)
            u = u.sign() if number == 1 else u * (u.abs() >= u.abs().max()) if number == 4 else u
            tensors.append((radius * u / u.norm() * math.sqrt(max(1, example.shape[0]))).to(example.dtype))
        values = runner(tensors)
        found.append([_range(values[place]) for place in places])
    pairs = torch.tensor(found, dtype=torch.float64)
    return torch.stack([pairs[..., 0].amin(0), pairs[..., 1].amax(0)], -1)


def _range(value: Tensor) -> tuple[float, float]:
    real = value.double()
    if real.numel() == 0:
        return 0.0, 0.0
    # -inf is what a model writes to mask an entry, wherever its inputs are.
    real = real[real != -math.inf]
    if not bool(torch.isfinite(real).all()):
        return -math.inf, math.inf
    return (float(real.min()), float(real.max())) if real.numel() else (0.0, 0.0)


def _check_witness(runner: _Runner, names: Sequence[str], outputs: Sequence[str], witness: Witness) -> str:
    def value(radius: float) -> float:
        tensors, by_rows = _along(runner.examples, names, witness.directions, radius)
        found = runner(tensors)[outputs.index(witness.output)]
        return float(found[(0, *witness.index) if by_rows else witness.index])

    if math.isinf(witness.degree):
        last = witness.evidence[-1].radius
        return _exponential(witness.output, [abs(value(last / 4)), abs(value(last / 2)), abs(value(last))])

    def size(radius: float) -> float:
        return float(radius**witness.degree * math.log(radius) ** witness.logarithms)

    for far in (1e6, *BEYOND, 1e25, 1e50):
        near = far / 100.0
        rate = (value(far) - value(near)) / (size(far) - size(near))
        if abs(rate / witness.slope - 1.0) <= RATE:
            return f"{witness.output} grows as claimed along its witness, at {far:.0e}"
    return f"!{witness.output} does not grow at the claimed rate {witness.slope:.3g} along its witness"


def _exponential(output: str, sizes: Sequence[float]) -> str:
    if all(
        a > 1.0 and (math.isinf(b) or math.log(b) > 1.5 * math.log(a)) for a, b in itertools.pairwise(sizes)
    ):
        return f"{output} grows faster than any power along its witness"
    return f"!{output} was claimed to grow faster than any power, and is {sizes} at doubling radii"


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
            u = (radius * directions[name].double()).to(example.dtype)
            tensors.append(u.unsqueeze(0) if by_rows else u)
        else:
            rests = by_rows and example.dim() > 0 and example.shape[0] == batch
            tensors.append(example[:1] if rests else example)
    return tensors, by_rows
