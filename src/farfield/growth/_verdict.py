"""Verdicts: bounded with a proof, unbounded with a witness, or unknown with the place and the reason."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from farfield.errors import InvalidValueError
from farfield.graph import InputSpec, OpaqueNodeError, Program, capture, differs, open_model
from farfield.growth._analysis import Analysis, analyze_growth
from farfield.growth._evaluate import Evaluator
from farfield.growth._extent import Reason
from farfield.growth._growth import Growth
from farfield.growth._horizon import leaves, with_rows
from farfield.growth._paths import Cut, EscapePath, bounding_cut, escape_paths, insertion_cut
from farfield.growth._witness import Witness, find_witness

__all__ = ["GrowthReport", "Status", "Verdict", "analyze", "zeros_for"]


class Status(enum.StrEnum):
    """What is proved about an output for every finite input, in real arithmetic."""

    BOUNDED = "bounded"
    UNBOUNDED = "unbounded"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is proved about one output as one input (or all of them) grows.

    Parameters
    ----------
    status
        BOUNDED by abstract interpretation, UNBOUNDED by a confirmed witness, else UNKNOWN.
    output
        Name of the output node.
    input
        Name of the moving input, the others held at arbitrary fixed values; ``None`` for all inputs at once.
    growth
        The upper bound on its growth.
    witness
        The direction and rate that prove UNBOUNDED.
    reason
        Why UNKNOWN, and at which node.
    paths
        Escape paths, where not bounded.
    cut
        For BOUNDED: the fewest bounding nodes that cut every path. Otherwise the fewest places where a norm
        would bound the output (``None`` if there is none).
    """

    status: Status
    output: str
    input: str | None
    growth: Growth
    witness: Witness | None
    reason: Reason | None
    paths: tuple[EscapePath, ...]
    cut: Cut | None

    def __str__(self) -> str:
        who = f"{self.output} as {self.input or 'all inputs'} grow{'s' if self.input else ''}"
        detail = {
            Status.BOUNDED: f"cut by {self.cut}" if self.cut else str(self.growth),
            Status.UNBOUNDED: str(self.witness),
            Status.UNKNOWN: str(self.reason),
        }[self.status]
        return f"{self.status.name} {who}: {detail}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "status": self.status.value,
            "output": self.output,
            "input": self.input,
            "growth": self.growth.to_dict(),
            "witness": None if self.witness is None else self.witness.to_dict(),
            "reason": None if self.reason is None else {"node": self.reason.node, "text": self.reason.text},
            "paths": [path.to_dict() for path in self.paths],
            "cut": None if self.cut is None else self.cut.to_dict(),
        }


@dataclass(frozen=True)
class GrowthReport:
    """Verdicts on every output of a model, for all inputs at once and for each real input alone.

    Parameters
    ----------
    status
        UNBOUNDED if any output is; else UNKNOWN if any is; BOUNDED only if all are.
    verdicts
        One per output with all inputs moving, then one per output and real input.
    analysis
        Every node's growth.
    notes
        Steps beside the verdicts that failed, and how.
    """

    status: Status
    verdicts: tuple[Verdict, ...]
    analysis: Analysis
    notes: tuple[Reason, ...] = ()

    @property
    def program(self) -> Program:
        """The captured program."""
        return self.analysis.program

    @property
    def witness(self) -> Witness | None:
        """The first witness, if any."""
        return next((v.witness for v in self.verdicts if v.witness is not None), None)

    @property
    def assumptions(self) -> tuple[Reason, ...]:
        """What the verdicts rest on beyond the program: each once."""
        stated = [a for v in self.verdicts for a in v.growth.assumptions]
        missed = [Reason("", f"the capture could not see: {text}") for text in self.program.unseen]
        sizes = [Reason("", f"batch size: {text}") for text in self.program.conditions]
        return tuple(dict.fromkeys([*stated, *missed, *sizes]))

    def verdict(self, output: str | None = None, input: str | None = None) -> Verdict:  # noqa: A002
        """The verdict on one output (the first by default) with respect to one input (all by default)."""
        wanted = self.program.outputs[0] if output is None else output
        for verdict in self.verdicts:
            if verdict.output == wanted and verdict.input == input:
                return verdict
        raise InvalidValueError(
            f"There is no verdict on output {wanted!r} for input {input!r}. Outputs: "
            f"{list(self.program.outputs)}; real inputs: {list(self.analysis.alone)}."
        )

    def __str__(self) -> str:
        return "\n".join(str(verdict) for verdict in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "status": self.status.value,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "assumptions": [{"node": a.node, "text": a.text} for a in self.assumptions],
            "notes": [{"node": n.node, "text": n.text} for n in self.notes],
        }


def analyze(
    model: nn.Module | ExportedProgram | Program | str | Path,
    example_inputs: Any = (),
    *,
    program: Program | None = None,
    generator: torch.Generator | None = None,
    paths: int = 3,
    progress: Callable[[int, int], None] | None = None,
) -> GrowthReport:
    """Decide for every output whether it is bounded on all of Rⁿ, and prove it.

    BOUNDED is a theorem about real arithmetic: abstract interpretation with sound rules. UNBOUNDED comes with
    a direction and an exact rate, confirmed by evaluating the model in float64. Everything else is UNKNOWN,
    with the node and the reason. Where the module is at hand, it and its program are first run side by side
    (:func:`farfield.graph.differs`): what is proved of a program that is not the module is UNKNOWN. Bounded does
    not mean correct: nothing is said about accuracy far from the data.

    Parameters
    ----------
    model
        A module, an exported program, a file holding one, or a captured program.
    example_inputs
        As for :func:`farfield.graph.capture`. Inputs held still while others move stay at the first row.
    program
        The captured program, where there is one already.
    generator
        Source of the random directions; by default one of its own with seed 0.
    paths
        How many escape paths to list per verdict.
    progress
        Called with steps done and steps in all: the growth of all nodes is one, a verdict is one, and so is the
        comparison with the module.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1))
    >>> analyze(model, (torch.zeros(2, 4),)).status
    <Status.BOUNDED: 'bounded'>
    """
    model, example_inputs = open_model(model, with_rows(example_inputs))
    if program is None:
        program = model if isinstance(model, Program) else capture(model, example_inputs)
    rng = torch.Generator().manual_seed(0) if generator is None else generator
    analysis = analyze_growth(program)
    desk = _Desk(analysis, model, example_inputs, _starts(program, example_inputs), rng, paths)
    joint: list[Verdict] = []
    alone: list[Verdict] = []
    single = len(program.inputs) == 1
    steps = 2 + len(program.outputs) * (1 if single else len(analysis.alone) + 1)
    count = itertools.count(1)

    def step() -> None:
        if progress is not None:
            progress(next(count), steps)

    step()
    for output in program.outputs:
        each = []
        for name in () if single else analysis.alone:
            each.append(desk.verdict(output, name))
            step()
        known = next((v.witness for v in each if v.witness is not None), None)
        joint.append(desk.verdict(output, None, known))
        step()
        alone += each
        if single and analysis.alone:
            alone.append(replace(joint[-1], input=next(iter(analysis.alone))))
    if isinstance(model, nn.Module) and any(_rests_on_program(v) for v in joint):
        text = desk.attempt(
            program.outputs[0], "the comparison with the module", differs, model, program, example_inputs
        )
        if text is not None:
            joint, alone = ([_withdrawn(v, text) for v in part] for part in (joint, alone))
    step()
    return GrowthReport(_overall(joint), (*joint, *alone), analysis, tuple(dict.fromkeys(desk.notes)))


def _rests_on_program(verdict: Verdict) -> bool:
    """Whether it says nothing about a module that computes something else than the captured program."""
    witness = verdict.witness
    return verdict.status is Status.BOUNDED or (witness is not None and "program" in witness.evaluated)


def _withdrawn(verdict: Verdict, text: str) -> Verdict:
    if not _rests_on_program(verdict):
        return verdict
    return replace(
        verdict, status=Status.UNKNOWN, witness=None, reason=Reason(verdict.output, text), cut=None
    )


def _overall(verdicts: Sequence[Verdict]) -> Status:
    found = {verdict.status for verdict in verdicts}
    for status in (Status.UNBOUNDED, Status.UNKNOWN):
        if status in found:
            return status
    return Status.BOUNDED


def _starts(program: Program, example_inputs: Any) -> tuple[Tensor, ...]:
    starts = leaves(example_inputs)
    if not starts:
        starts = [zeros_for(spec) for spec in program.inputs]
    if len(starts) != len(program.inputs):
        raise InvalidValueError(
            f"The program takes {len(program.inputs)} tensors ({', '.join(s.name for s in program.inputs)}) "
            f"and example_inputs holds {len(starts)}."
        )
    return tuple(starts)


def zeros_for(spec: InputSpec) -> Tensor:
    """An input of zeros, open sizes 1."""
    return torch.zeros([d if isinstance(d, int) else 1 for d in spec.shape], dtype=spec.dtype)


class _Desk:
    """Gives verdicts; a step that fails after the growth analysis is a note, never the end of the analysis."""

    def __init__(
        self,
        analysis: Analysis,
        model: Any,
        example_inputs: Any,
        starts: tuple[Tensor, ...],
        generator: torch.Generator,
        limit: int,
    ) -> None:
        self.analysis, self.starts, self.generator, self.limit = analysis, starts, generator, limit
        self.notes: list[Reason] = []
        self.unconfirmed: list[str] = []
        self._model = (model, example_inputs)

    @cached_property
    def evaluator(self) -> Evaluator:
        """Made on first use: a bounded model is never copied."""
        return Evaluator(self.analysis.program, *self._model)

    def attempt(self, node: str, what: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """What the function returns; ``None``, and a note, where it fails."""
        try:
            return function(*args, **options)
        except OpaqueNodeError:
            return None  # nothing to run apart from the model: the verdict says so itself
        except Exception as error:
            said = str(error).strip().partition("\n")[0][:300]
            self.notes.append(Reason(node, f"{what} failed: {type(error).__name__}: {said}"))
            return None

    def verdict(self, output: str, moving: str | None, known: Witness | None = None) -> Verdict:
        """The verdict on one output; ``known`` is a witness of one input alone."""
        analysis = self.analysis
        growth = analysis.growth(output, moving)
        if growth.bounded:
            cut = self.attempt(
                output, "the search for what bounds it", bounding_cut, analysis, output, moving
            )
            return Verdict(Status.BOUNDED, output, moving, growth, None, None, (), cut)
        witness = (
            self.attempt(output, "the search for a direction of growth", self._search, output, moving)
            or known
        )
        ways = self.attempt(
            output, "the search for escape paths", escape_paths, analysis, output, moving, limit=self.limit
        )
        cut = self.attempt(
            output, "the search for a place for a norm", insertion_cut, analysis, output, moving
        )
        paths: tuple[EscapePath, ...] = ways or ()
        if witness is not None:
            return Verdict(Status.UNBOUNDED, output, moving, growth, witness, None, paths, cut)
        reason = growth.reason
        if analysis.program.capture == "modules":
            reason = Reason(output, f"the model could not be captured: {' '.join(analysis.program.unseen)}")
        if reason is None and self.unconfirmed:
            reason = Reason(output, f"not provably bounded ({growth}): {self.unconfirmed[0]}")
        elif reason is None:
            way = f" along {paths[0]}" if paths else ""
            reason = Reason(
                output, f"not provably bounded ({growth}){way}, and no direction of growth was found"
            )
        return Verdict(Status.UNKNOWN, output, moving, growth, None, reason, paths, cut)

    def _search(self, output: str, moving: str | None) -> Witness | None:
        self.unconfirmed.clear()
        return find_witness(
            self.analysis,
            self.starts,
            self.analysis.program.outputs.index(output),
            moving=None if moving is None else (moving,),
            evaluator=self.evaluator,
            generator=self.generator,
            notes=self.unconfirmed,
        )
