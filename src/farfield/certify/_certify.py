"""``certify``: from a bounded model to numbers that hold for every input.

program → claims (intervals) → network → provers → proofs → certificate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map

from farfield._budget import Budget, Clock, running
from farfield._provenance import provenance
from farfield.certify._certificate import Certificate, Method
from farfield.certify._domain import domain_boxes, plain_domain
from farfield.certify._float_limit import float_limit
from farfield.certify._hash import model_hash
from farfield.certify._proofs import IntervalProof, Proof, SoftmaxProof, read_proof, weakened
from farfield.certify._provers import AttainedPoint, Key, OutputCase, prepare, provers, reached
from farfield.certify._search import Attained, attained
from farfield.certify._softmax import DIFFERENCES, confidence, difference_program, pairs
from farfield.certify.checker import CertificateError, proof_reader
from farfield.certify.intervals import Interval, UnboundableError, propagate
from farfield.errors import FarfieldError, InvalidValueError, UnknownNameError
from farfield.graph import Node, Program, capture, describe, differs, open_model
from farfield.growth import Status, analyse

__all__ = ["Task", "UnboundedError", "captured_row", "certify", "first_row", "make_task", "prove_task"]

ALLOWANCE = 2e-9
"""Published bounds are wider than proved ones by this much of themselves: a checker rounds differently."""
RECHECKED_CELLS = 20_000
"""Proofs of up to this many cells are checked again before they are published."""
SEARCH_SHARE = 0.15
Progress: TypeAlias = Callable[[float, str], None]


class UnboundedError(FarfieldError):
    """There is no certificate: the model is unbounded, or not proved bounded. The message says which, and where."""


@dataclass(frozen=True)
class Task:
    """What is to be bounded: one output of a program, over a domain, on these sides."""

    program: Program
    output: str
    domain: Mapping[str, Any]
    boxes: Mapping[str, Interval]
    signs: tuple[int, ...] = (1, -1)


@dataclass(frozen=True)
class Solution:
    """The best proof of every entry and side, values met on the way, and what could not be re-checked."""

    proofs: Mapping[Key, Proof]
    witnesses: Mapping[Key, AttainedPoint]
    doubts: tuple[str, ...] = ()


@torch.enable_grad()  # the search climbs; a caller may have switched gradients off
def certify(
    model: nn.Module | ExportedProgram | str | Path,
    inputs: Any = (),
    *,
    time_budget: float | Budget = 60.0,
    domain: Any = None,
    output: str | None = None,
    resume: Certificate | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Bounds on a model's output that hold for every input, with proofs that someone else can re-check.

    Three methods, the best one per entry and side: interval propagation from the images of the norms (any model);
    branch and bound over the compactified input, t·(x, 1) on a cube's surface (up to five inputs: tight to a few
    thousandths in dimension 1–3); a Lagrangian dual with quadratic multipliers from the last norms onwards (any size
    that fits). What the model attains is searched by gradients, near and far: the certificate knows how tight it is.

    The bounds speak of real arithmetic, of the model as captured in eval mode, and of every draw where it draws
    random numbers. A bound is not a claim of accuracy.

    Parameters
    ----------
    model
        A module, an exported program, or the path of a ``.pt2`` or ``.onnx`` file.
    inputs
        An example input, a tuple of them, or a dictionary: shapes matter, the first row is taken.
    time_budget
        Seconds of search, beside what capturing the model takes and what checking the proofs again before they are
        published takes (as long again where they are cells, little otherwise), or a
        :class:`~farfield._budget.Budget`, whose steps are batches of cells, gradient steps of the dual and gradient
        steps of the search for attained values. The best answer found by then is returned, and it is sound whenever
        it comes.
    domain
        Every real input by default; (lower, upper) for a box; see
        :class:`~farfield.certify.Certificate` for half-spaces.
    output
        Name of the output, where the model has several.
    resume
        An earlier certificate of the same model: its searches go on, and no bound gets worse.
    generator
        Source of random starts; one of its own with seed 0 by default.
    progress
        Called with the share of the time used and what is going on.

    Raises
    ------
    UnboundedError
        If the model is unbounded (with the direction and the rate), or could not be proved bounded.

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Linear(8, 1)).double()
    >>> certificate = certify(model, torch.zeros(1, 2, dtype=torch.float64), time_budget=1)
    >>> bool((certificate.upper <= 8**0.5 * model[2].weight.norm() + model[2].bias).all())
    True
    """
    begun = time.monotonic()
    model, example = open_model(model, first_row(inputs), rows=1)
    task = make_task(captured_row(model, example), output, domain)
    if resume is not None:
        _same(resume, task)
    made = prove_task(
        task, time_budget, start=_leaves(example), resume=resume, generator=generator, progress=progress
    )
    random = bool(_draws(task.program))
    limit = None if random else float_limit(model, example, task.program)
    return replace(made, float_limit=limit, seconds=time.monotonic() - begun)


def prove_task(
    task: Task,
    time_budget: float | Budget | Clock,
    *,
    start: list[Tensor] | None = None,
    resume: Certificate | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """The certificate of a program that is captured already; without a limit of floating point."""
    begun = time.monotonic()
    whole = running(time_budget)
    clock = whole.share(0.95)

    def say(words: str) -> None:
        if progress is not None:
            progress(1.0 - whole.left, words)

    say("intervals")
    claims = _claims(task)
    found = attained(
        task.program,
        task.output,
        time_budget=_search_clock(clock),
        generator=generator or torch.Generator().manual_seed(0),
        domain=task.domain,
        start=start,
    )
    solution = _solve(task, claims, found, clock, say, resume)
    solution = _confidences(task, solution, clock, say)
    return _certificate(task, found, solution, time.monotonic() - begun, time_budget)


def captured_row(model: nn.Module | ExportedProgram | str | Path, example: Any) -> Program:
    """The program, held against the module it was captured from."""
    program = capture(model, example, dynamic_batch=False)
    found = differs(model, program, example) if isinstance(model, nn.Module) else None
    if found is not None:
        raise UnboundedError(f"There is no certificate: the captured program is not the model. {found}")
    return program


def make_task(program: Program, output: str | None, domain: Any) -> Task:
    if output is None and len(program.outputs) > 1:
        raise InvalidValueError(
            f"The model returns {len(program.outputs)} tensors ({', '.join(program.outputs)}): say which one with "
            "output=…"
        )
    name = program.outputs[0] if output is None else output
    if name not in program.outputs:
        raise UnknownNameError("output", name, program.outputs)
    where = plain_domain(domain, program)
    return Task(program, name, where, domain_boxes(where, program))


def _same(resume: Certificate, task: Task) -> None:
    mine = (model_hash(task.program), task.output, dict(task.domain))
    if (resume.model_hash, resume.output, dict(resume.domain)) != mine:
        raise InvalidValueError(
            "resume= takes a certificate of the same model, output and domain, and this one is of another."
        )


def _search_clock(clock: Clock) -> Clock:
    """The share of the search for attained values: from 0.2 to 20 seconds."""
    seconds = clock.seconds_left
    share = SEARCH_SHARE
    if 0 < seconds < math.inf:
        share = min(max(share, min(0.5, 0.2 / seconds)), 20.0 / seconds)
    return clock.share(share)


# -- claims ----------------------------------------------------------------------------------------------------------


def _claims(task: Task) -> dict[str, Any]:
    """Every node's range; the error says why there is none."""
    reason = "intervals give no finite range"
    claims: dict[str, Any] = {}
    try:
        claims = propagate(task.program, inputs=dict(task.boxes))
    except UnboundableError as error:
        reason = str(error)
    claim = claims.get(task.output)
    if isinstance(claim, Interval) and bool((torch.isfinite(claim.lo) & torch.isfinite(claim.hi)).all()):
        return claims
    draw = _unbounded_draw(task, claims)
    if draw is not None:
        raise UnboundedError(
            f"There is no certificate: {task.output!r} depends on random numbers that have no bound, drawn at "
            f"{draw.place}."
        )
    if task.domain["kind"] == "box":
        raise UnboundedError(f"{task.output!r} was not proved bounded: {reason}.")
    verdict = next(v for v in analyse(task.program).verdicts if v.output == task.output)
    if verdict.status is Status.UNBOUNDED:
        raise UnboundedError(
            f"There is no certificate: the output {task.output!r} is unbounded. {verdict}. "
            "Run farfield audit for the escape path and the place for a norm."
        )
    if verdict.status is Status.UNKNOWN:
        raise UnboundedError(
            f"There is no certificate: whether {task.output!r} is unbounded is open. {verdict}."
        )
    raise UnboundedError(f"{task.output!r} is bounded, but no number was proved: {reason}.")


def _unbounded_draw(task: Task, claims: Mapping[str, Any]) -> Node | None:
    """A random draw of any size that the output depends on."""
    for node in _draws(task.program):
        claim = claims.get(node.name)
        if not node.operands and isinstance(claim, Interval) and not claim.bounded:
            return node
    return None


def _draws(program: Program) -> list[Node]:
    return [node for node in program.nodes if node.role == "operation" and not describe(node).deterministic]


# -- proofs ----------------------------------------------------------------------------------------------------------


def _solve(
    task: Task, claims: Mapping[str, Any], found: Attained, clock: Clock, say: Callable[[str], None],
    resume: Certificate | None = None,
) -> Solution:  # fmt: skip
    """(entry, sign) → the best proof there is time for, as the checker proves it."""
    claim = claims[task.output]
    best: dict[Key, Proof] = {}
    for i, (lo, hi) in enumerate(zip(claim.lo.reshape(-1), claim.hi.reshape(-1), strict=True)):
        for sign in task.signs:
            best[i, sign] = IntervalProof(i, sign, float(hi) if sign > 0 else -float(lo))
    for data in () if resume is None else resume.proofs:
        old = read_proof(data)
        best[old.output, old.sign] = _better(best[old.output, old.sign], old)
    witnesses: dict[Key, AttainedPoint] = {}
    case = None
    if difference_program(task.program, task.output) is None:
        case = prepare(task.program, task.output, claims, task.boxes, found)
    if case is not None:
        jobs = sorted(best, key=lambda k: -(best[k].bound - reached(found, k)))
        for done, key in enumerate(jobs):
            if clock.over:
                break
            say(f"output {key[0]}, {'upper' if key[1] > 0 else 'lower'} bound")
            _prove(case, key, best, witnesses, clock.share(1.0 / (len(jobs) - done)))
    say("checking the proofs again")
    proofs, doubts = _rechecked(task, best)
    return Solution(proofs, witnesses, doubts)


def _prove(
    case: OutputCase, key: Key, best: dict[Key, Proof], witnesses: dict[Key, AttainedPoint], clock: Clock
) -> None:
    """Every prover in turn, until the bound is close to what is attained or the time is up."""
    for prover, share in provers(case):
        if clock.over or best[key].bound - reached(case.found, key) <= case.tolerance(key[0]):
            return
        proof, witness = prover(case, key, best[key], clock.share(share))
        if proof is not None:
            best[key] = _better(best[key], proof)
        if witness is not None:
            witnesses[key] = witness


def _better(old: Proof, new: Proof) -> Proof:
    return new if new.bound < old.bound else old


def _rechecked(task: Task, proofs: Mapping[Key, Proof]) -> tuple[dict[Key, Proof], tuple[str, ...]]:
    """Proofs with bounds that the checker proves as well: where its arithmetic is coarser, its bound is published.

    Long lists of cells are left out, for the time it takes: the checker halves what it finds too large. Wherever it
    was counted it looked at three to six cells for each one listed, and it may look at seventeen.
    """
    read = proof_reader(task.program, task.output, task.domain)
    checked, doubts = dict(proofs), []
    for key, proof in proofs.items():
        if proof.kind == "cells" and proof.cells > RECHECKED_CELLS:  # type: ignore[union-attr]
            continue
        try:
            checked[key] = weakened(proof, max(proof.bound, read(proof.to_dict())))
        except CertificateError as error:
            doubts.append(f"{str(error).rstrip('.')}; this bound rests on the search alone.")
    return checked, tuple(doubts)


def _confidences(task: Task, solution: Solution, clock: Clock, say: Callable[[str], None]) -> Solution:
    """Behind a softmax: bounds on the logits' differences, and through them on every probability."""
    program = difference_program(task.program, task.output)
    if program is None:
        return solution
    inner = Task(program, DIFFERENCES, task.domain, task.boxes, (1,))
    try:
        claims = _claims(inner)
    except UnboundedError:
        return solution
    generator = torch.Generator().manual_seed(0)
    found = attained(
        program, DIFFERENCES, time_budget=clock.share(0.1), generator=generator, domain=task.domain
    )
    differences = _solve(inner, claims, found, clock, say)
    bounds = [_published(differences.proofs[row, 1].bound) for row in range(len(differences.proofs))]
    classes = len(solution.proofs) // 2
    best = dict(solution.proofs)
    for (index, sign), old in solution.proofs.items():
        used = [differences.proofs[r, 1] for r, pair in enumerate(pairs(classes)) if pair[sign < 0] == index]
        bound = sign * confidence(bounds, classes, index, sign > 0)
        best[index, sign] = _better(old, SoftmaxProof(index, sign, bound, tuple(used)))
    return Solution(best, solution.witnesses, (*solution.doubts, *differences.doubts))


# -- the certificate -------------------------------------------------------------------------------------------------


def _certificate(
    task: Task, found: Attained, solution: Solution, seconds: float, time_budget: float | Budget | Clock
) -> Certificate:
    program, count = task.program, found.lower.numel()
    lower_witness, upper_witness = found.witnesses()
    low, high = found.lower.clone(), found.upper.clone()
    for (i, sign), witness in solution.witnesses.items():
        values, places = (high, upper_witness) if sign > 0 else (low, lower_witness)
        if sign * float(values[i]) < witness.value:
            values[i] = sign * witness.value
            places[i] = {"point": list(witness.point), "direction": None, "value": sign * witness.value}
    proofs = solution.proofs
    upper = torch.tensor([_published(proofs[i, 1].bound) for i in range(count)], dtype=torch.float64)
    lower = torch.tensor([-_published(proofs[i, -1].bound) for i in range(count)], dtype=torch.float64)
    kinds = {"mixed" if proof.kind == "softmax" else proof.kind for proof in proofs.values()}
    shape = tuple(int(d) for d in program.node(task.output).shape)
    random = bool(_draws(program))
    limit = _limit(time_budget)
    return Certificate(
        lower.reshape(shape),
        upper.reshape(shape),
        low.reshape(shape),
        high.reshape(shape),
        witnesses=(lower_witness, upper_witness),
        method=cast("Method", kinds.pop() if len(kinds) == 1 else "mixed"),
        assumptions=(*_assumptions(program, random=random), *solution.doubts),
        model_hash=model_hash(program),
        domain=dict(task.domain),
        output=task.output,
        input_shape=tuple(tuple(int(d) for d in spec.shape) for spec in program.inputs),
        input_dtype=tuple(str(spec.dtype).removeprefix("torch.") for spec in program.inputs),
        float_limit=None,
        proofs=tuple(proofs[i, sign].to_dict() for i in range(count) for sign in (1, -1)),
        seconds=seconds,
        provenance=provenance({"time_budget": limit.seconds, "steps": limit.steps}),
    )


def _limit(time_budget: float | Budget | Clock) -> Budget:
    """What was given, for the record."""
    if isinstance(time_budget, Budget):
        return time_budget
    seconds = time_budget.seconds_left if isinstance(time_budget, Clock) else float(time_budget)
    return Budget(seconds=max(0.0, seconds)) if seconds < math.inf else Budget(steps=0)


def _published(bound: float) -> float:
    return bound + ALLOWANCE * max(1.0, abs(bound))


def _assumptions(program: Program, *, random: bool) -> tuple[str, ...]:
    said = [
        "Real arithmetic: rounding of the model's own forward pass is not covered; see float_limit.",
        "The model as captured: eval mode, one row, fixed sizes and weights.",
        "float64 functions of the platform (exp, tanh, erf, …) are right to four units in the last place.",
    ]
    if random:
        said.append(
            "The model draws random numbers: the bounds hold for every draw; attained values are of one draw."
        )
    held = (f"Input {s.name!r} is {s.kind}: bounded by nature." for s in program.inputs if s.kind != "real")
    return (*said, *held)


def first_row(inputs: Any) -> Any:
    """The example's first row: bounds speak of one row, and rows of a batch don't mix."""

    def one(leaf: Any) -> Any:
        return leaf[:1] if isinstance(leaf, Tensor) and leaf.ndim > 0 else leaf

    return tree_map(one, inputs)


def _leaves(example: Any) -> list[Tensor] | None:
    found: list[Tensor] = []
    tree_map(lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None, example)
    return found or None
