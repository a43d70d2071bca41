"""Proofs for every entry and side of an output over a domain, checked again before anyone sees them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from farfield._budget import Clock
from farfield.certify._cone import Cone, cone_of
from farfield.certify._domain import domain_boxes, restricted
from farfield.certify._proofs import (
    CellsProof,
    DualProof,
    IntervalProof,
    Proof,
    SoftmaxProof,
    read_proof,
    weakened,
)
from farfield.certify._provers import (
    AttainedPoint,
    Key,
    OutputCase,
    Prover,
    by_dual,
    by_nested,
    prepare,
    provers,
    reached,
)
from farfield.certify._search import Attained, attained
from farfield.certify._search_region import search_region
from farfield.certify._softmax import DIFFERENCES, confidence, difference_program, pairs
from farfield.certify.checker import CertificateError, proof_reader
from farfield.certify.intervals import Interval, UnboundableError, propagate
from farfield.errors import FarfieldError
from farfield.graph import Node, Program, describe, real_size
from farfield.growth import Status, analyze

__all__ = [
    "Solution",
    "Task",
    "UnboundedError",
    "draws",
    "published",
    "read_proofs",
    "solve_domain",
]

EVERY_INPUT: Mapping[str, Any] = {"kind": "all"}
ALLOWANCE = 2e-9
"""Published bounds are wider than proved ones by this much of themselves: a checker rounds differently."""
RECHECKED_CELLS = 20_000
"""Proofs of up to this many cells are checked again before they are published, where there is time."""
LAYER_SHARE = 0.45
"""Of the time, for the ranges of deep layers, where there are some."""
RECHECK_RATE = 1.5
"""Seconds that checking cells again takes for each second of searching them; 1 to 1.5 was measured."""


class UnboundedError(FarfieldError):
    """There is no certificate: the model is unbounded, or not proved bounded. The message says which, and where."""


@dataclass(frozen=True)
class Task:
    """What is to be bounded: one output of a model, over a domain, on these sides.

    ``program`` is what provers take: its values over the boxes (over every input where there are none) are the
    model's over the domain.
    """

    model: Program
    program: Program
    output: str
    domain: Mapping[str, Any]
    boxes: Mapping[str, Interval]
    signs: tuple[int, ...] = (1, -1)
    cone: Cone | None = None
    """The domain in homogeneous coordinates, for a task over every input that need only hold in it."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """That domain."""

    @classmethod
    def over(
        cls, model: Program, output: str, domain: Mapping[str, Any], signs: tuple[int, ...] = (1, -1)
    ) -> Task:
        """The task of a plain domain."""
        return cls(model, restricted(model, domain), output, domain, domain_boxes(domain, model), signs)

    def require_bounded(self) -> None:
        """Raise :class:`UnboundedError`, with the reason, unless intervals bound the output."""
        _claims(self)

    @property
    def usable(self) -> bool:
        """Whether the program is the model over the domain; a half-space is used in homogeneous coordinates only."""
        return bool(self.domain["kind"] != "halfspace")

    @cached_property
    def claimed(self) -> tuple[dict[str, Any], str | None]:
        """Every node's range, and why the output has no finite one (``None`` where it has); computed once."""
        return _claimed(self)

    @cached_property
    def outer(self) -> Task:
        """The same in homogeneous coordinates."""
        whole = Task.over(self.model, self.output, EVERY_INPUT, self.signs)
        return replace(whole, cone=cone_of(self.domain), asked=self.domain)


@dataclass(frozen=True)
class Solution:
    """The best proof of every entry and side, values met on the way, and what could not be re-checked.

    ``over``: entries and sides whose proof is not about the domain's own program, but about every input
    (``"everywhere"``) or about the domain's cone in homogeneous coordinates (``"cone"``).
    """

    proofs: Mapping[Key, Proof]
    witnesses: Mapping[Key, AttainedPoint]
    doubts: tuple[str, ...] = ()
    over: Mapping[Key, str] = field(default_factory=dict)
    behind: int = 0
    """Layers of activations behind the last norm, which is what the dual has to cross."""

    def joined(self, proofs: Mapping[Key, Proof], over: str) -> Solution:
        """Where one of these proofs is the better one, that one."""
        better = {k: p for k, p in proofs.items() if k in self.proofs and p.bound < self.proofs[k].bound}
        return replace(
            self, proofs={**self.proofs, **better}, over={**self.over, **dict.fromkeys(better, over)}
        )

    def proof_data(self, key: Key) -> dict[str, Any]:
        """The proof of an entry and side as a certificate holds it."""
        data = self.proofs[key].to_dict()
        return {**data, "over": self.over[key]} if key in self.over else data


# -- claims ----------------------------------------------------------------------------------------------------------


def _claimed(task: Task) -> tuple[dict[str, Any], str | None]:
    """Every node's range, and why the output has no finite one; ``None`` where it has."""
    reason = "intervals give no finite range"
    claims: dict[str, Any] = {}
    try:
        claims = propagate(task.program, inputs=dict(task.boxes))
    except UnboundableError as error:
        reason = str(error)
    claim = claims.get(task.output)
    finite = isinstance(claim, Interval) and bool((torch.isfinite(claim.lo) & torch.isfinite(claim.hi)).all())
    return claims, None if finite else reason


def _claims(task: Task) -> dict[str, Any]:
    """Every node's range; the error says why there is none."""
    claims, reason = task.claimed
    if reason is None:
        return claims
    draw = _unbounded_draw(task, claims)
    if draw is not None:
        raise UnboundedError(
            f"There is no certificate: {task.output!r} depends on random numbers that have no bound, drawn at "
            f"{draw.place}."
        )
    if task.domain["kind"] in ("box", "ball", "ellipsoid"):
        raise UnboundedError(f"{task.output!r} was not proved bounded over the domain: {reason}.")
    verdict = next(v for v in analyze(task.model).verdicts if v.output == task.output)
    if verdict.status is Status.UNBOUNDED:
        raise UnboundedError(
            f"There is no certificate: the output {task.output!r} is unbounded. {verdict}. "
            "Run farfield audit for the escape path and the place for a norm."
        )
    if verdict.status is Status.UNKNOWN:
        raise UnboundedError(
            f"There is no certificate: farfield could not decide whether {task.output!r} is bounded. {verdict}."
        )
    raise UnboundedError(f"{task.output!r} is bounded, but farfield could not prove a number: {reason}.")


def _unbounded_draw(task: Task, claims: Mapping[str, Any]) -> Node | None:
    """A random draw of any size that the output depends on."""
    for node in draws(task.program):
        claim = claims.get(node.name)
        if not node.operands and isinstance(claim, Interval) and not claim.bounded:
            return node
    return None


def draws(program: Program) -> list[Node]:
    """Nodes that draw random numbers."""
    return [node for node in program.nodes if node.role == "operation" and not describe(node).deterministic]


# -- proofs ----------------------------------------------------------------------------------------------------------


def solve_domain(
    task: Task, found: Attained, clock: Clock, check: Clock, say: Callable[[str], None],
    earlier: Mapping[str, Mapping[Key, Proof]],
) -> Solution:  # fmt: skip
    """The best proofs over the task's domain, by its own program and in homogeneous coordinates.

    ``earlier`` are proofs that exist already, by what they are over (:func:`read_proofs`). A model that is bounded
    everywhere spends half of its time in homogeneous coordinates, all of it over a half-space.
    """
    if task.domain["kind"] == "all":
        return solve(task, found, clock, check, say, earlier.get("domain", {}))
    outer, made = task.outer, None
    if not task.usable or outer.claimed[1] is None:
        share = clock.share(0.5) if task.usable else clock
        there = solve(outer, found, share, check, say, earlier.get("cone", {}))
        region = search_region(task.domain, real_size(task.model))
        met = {
            key: one
            for key, one in there.witnesses.items()
            if region.contains(torch.tensor(one.point, dtype=torch.float64))
        }  # where a domain has no cone, these were met anywhere
        made = replace(there, over=dict.fromkeys(there.proofs, "cone"), witnesses=met)
    if task.usable:
        own = solve(task, found, clock, check, say, earlier.get("domain", {}))
        if made is not None:
            own = own.joined(made.proofs, "cone")
            own = replace(
                own, witnesses={**made.witnesses, **own.witnesses}, doubts=(*own.doubts, *made.doubts)
            )
        made = own
    assert made is not None
    return made.joined(earlier.get("everywhere", {}), "everywhere")


def solve(
    task: Task, found: Attained, clock: Clock, check: Clock, say: Callable[[str], None],
    resume: Mapping[Key, Proof],
) -> Solution:  # fmt: skip
    """(entry, sign) → the best proof there is time for, as the checker proves it."""
    solution = _solve(task, _claims(task), found, clock, check, say, resume)
    solution = replace(solution, witnesses=_in_domain(task, solution.witnesses))
    return _confidences(task, solution, clock, check, say)


def _in_domain(task: Task, witnesses: Mapping[Key, AttainedPoint]) -> dict[Key, AttainedPoint]:
    """Points of a restricted program as points of the model's inputs; those that rounding put outside are lost."""
    if task.program is task.model:
        return dict(witnesses)
    names = [spec.name for spec in task.model.inputs if spec.kind == "real"]
    region = search_region(task.domain, real_size(task.model))
    kept = {}
    for (index, sign), witness in witnesses.items():
        free = torch.tensor(witness.point, dtype=torch.float64).reshape(1, -1)
        rest = [torch.zeros([int(d) for d in s.shape], dtype=s.dtype) for s in task.program.inputs[1:]]
        values = task.program.evaluate(free, *rest, keep=names)
        point = region.project(torch.cat([values[name].reshape(1, -1) for name in names], 1))[0]
        given = real_inputs(task.model, point)
        value = sign * float(task.model.evaluate(*given, keep=[task.output])[task.output].reshape(-1)[index])
        if region.contains(point):
            kept[index, sign] = AttainedPoint(value, tuple(point.tolist()))
    return kept


def real_inputs(program: Program, point: Tensor) -> list[Tensor]:
    """Every input of a program: the real ones from their entries, flattened and joined, the others 0."""
    given, begin = [], 0
    for spec in program.inputs:
        shape = torch.Size(int(d) for d in spec.shape)
        if spec.kind != "real":
            given.append(torch.zeros(shape, dtype=spec.dtype))
            continue
        given.append(point[begin : begin + shape.numel()].reshape(shape))
        begin += shape.numel()
    return given


def _solve(
    task: Task, claims: Mapping[str, Any], found: Attained, clock: Clock, check: Clock,
    say: Callable[[str], None], resume: Mapping[Key, Proof],
) -> Solution:  # fmt: skip
    claim = claims[task.output]
    best: dict[Key, Proof] = {}
    for i, (lo, hi) in enumerate(zip(claim.lo.reshape(-1), claim.hi.reshape(-1), strict=True)):
        for sign in task.signs:
            best[i, sign] = IntervalProof(i, sign, float(hi) if sign > 0 else -float(lo))
    intervals = dict(best)
    best |= {key: _better(best[key], old) for key, old in resume.items() if key in best}
    plain = {key: intervals[key] if _by_checker(proof) else proof for key, proof in best.items()}
    witnesses: dict[Key, AttainedPoint] = {}
    spent: dict[Key, float] = {}
    case = None
    if difference_program(task.program, task.output) is None:
        case = prepare(task.program, task.output, claims, task.boxes, found, task.cone)
    for stage in [] if case is None else _stages(case):
        assert case is not None
        if all(case.close(key, proof.bound) for key, proof in best.items()):
            break
        plain |= {key: proof for key, proof in best.items() if not _by_checker(proof)}
        if case.deep and stage[0][0] is by_dual:
            say("ranges of deep layers")
            clock = clock.share(1.0 - case.recheck_share(clock.seconds_left))
            case = case.tightened(clock.share(LAYER_SHARE))
        if stage[0][0] is by_nested:
            say("a bound below what the last norm divides by")
            case = case.anchored(clock)
            earlier = any(_by_checker(proof) for proof in best.values())
            if not earlier and not case.nesting_pays(clock, len(best)):
                stage = [(by_dual, 0.97)]
        jobs = sorted(best, key=lambda k: -(best[k].bound - reached(found, k)))
        for done, key in enumerate(jobs):
            if clock.over:
                break
            say(f"output {key[0]}, {'upper' if key[1] > 0 else 'lower'} bound")
            begun = clock.elapsed
            _prove(case, key, best, witnesses, clock.share(1.0 / (len(jobs) - done)), stage)
            spent[key] = spent.get(key, 0.0) + clock.elapsed - begun
    say("checking the proofs again")
    proofs, doubts = _rechecked(task, best, check, spent, plain)
    behind = len(case.problem.curves) if case is not None and case.problem is not None else 0
    return Solution(proofs, witnesses, doubts, behind=behind)


def _stages(case: OutputCase) -> list[Sequence[tuple[Prover, float]]]:
    """Provers that take turns at one entry and side; where layers are deep, cells come first for all of them.

    Ranges of deep layers take half of the time, and where cells have closed every gap nobody needs them.
    """
    chosen = provers(case)
    apart = case.deep or case.nested is not None
    return [[one] for one in chosen] if apart else [chosen] if chosen else []


def _prove(
    case: OutputCase, key: Key, best: dict[Key, Proof], witnesses: dict[Key, AttainedPoint], clock: Clock,
    stage: Sequence[tuple[Prover, float]],
) -> None:  # fmt: skip
    """Every prover in turn, until the bound is close to what is attained or the time is up."""
    for prover, share in stage:
        if clock.over or case.close(key, best[key].bound):
            return
        proof, witness = prover(case, key, best[key], clock.share(share))
        if proof is not None:
            best[key] = _better(best[key], proof)
        if witness is not None:
            witnesses[key] = witness


def _better(old: Proof, new: Proof) -> Proof:
    return new if new.bound < old.bound else old


def _by_checker(proof: Proof) -> bool:
    """Whether a proof is one that the checker alone makes rigorous."""
    return isinstance(proof, DualProof) and proof.by_checker


def _rechecked(
    task: Task,
    proofs: Mapping[Key, Proof],
    check: Clock,
    spent: Mapping[Key, float],
    plain: Mapping[Key, Proof],
) -> tuple[dict[Key, Proof], tuple[str, ...]]:
    """Proofs with bounds that the checker proves as well: where its arithmetic is coarser, its bound is published.

    Cells are left out where there are many, or where a budget in seconds leaves no time for them: the checker halves
    what it finds too large. Wherever it was counted it looked at three to six cells for each one listed, and it may
    look at seventeen. A proof that rests on ranges of deep layers has them from the checker alone: where the checker
    proves none, the ``plain`` proof is checked in its place.
    """
    read = proof_reader(task.model, task.output, task.asked or task.domain)
    mark = {"over": "cone"} if task.asked else {}
    checked, doubts = dict(proofs), []
    for key in sorted(proofs, key=lambda k: spent.get(k, 0.0)):
        for proof in (proofs[key], plain[key]):
            checked[key] = proof
            if isinstance(proof, CellsProof) and (
                proof.cells > RECHECKED_CELLS or RECHECK_RATE * spent.get(key, 0.0) > check.seconds_left
            ):
                break
            try:
                again = read({**proof.to_dict(), **mark})
                if math.isnan(again):
                    raise CertificateError("The checker's bound is not a number")
                checked[key] = weakened(proof, max(proof.bound, again))
            except CertificateError as error:
                if _by_checker(proof):
                    continue
                doubts.append(f"{str(error).rstrip('.')}; this bound rests on the search alone.")
            break
    return checked, tuple(doubts)


def _confidences(
    task: Task, solution: Solution, clock: Clock, check: Clock, say: Callable[[str], None]
) -> Solution:
    """Behind a softmax: bounds on the logits' differences, and through them on every probability."""
    model = difference_program(task.model, task.output)
    if model is None:
        return solution
    inner = Task.over(model, DIFFERENCES, task.domain, (1,))
    try:
        claims = _claims(inner)
    except UnboundedError:
        return solution
    generator = torch.Generator().manual_seed(0)
    found = attained(
        model, DIFFERENCES, time_budget=clock.share(0.1), generator=generator, domain=task.domain
    )
    differences = _solve(inner, claims, found, clock, check, say, {})
    bounds = [published(differences.proofs[row, 1].bound) for row in range(len(differences.proofs))]
    classes = len(solution.proofs) // 2
    best = dict(solution.proofs)
    for (index, sign), old in solution.proofs.items():
        used = [differences.proofs[r, 1] for r, pair in enumerate(pairs(classes)) if pair[sign < 0] == index]
        bound = sign * confidence(bounds, classes, index, sign > 0)
        best[index, sign] = _better(old, SoftmaxProof(index, sign, bound, tuple(used)))
    return Solution(
        best, solution.witnesses, (*solution.doubts, *differences.doubts), behind=differences.behind
    )


def published(bound: float) -> float:
    """A proved bound with room for a checker that rounds differently."""
    return bound + ALLOWANCE * max(1.0, abs(bound))


def read_proofs(data: Sequence[Mapping[str, Any]]) -> dict[str, dict[Key, Proof]]:
    """The proofs of a certificate by what they are over: its domain, the domain's cone, or everywhere."""
    made: dict[str, dict[Key, Proof]] = {}
    for one in data:
        proof = read_proof(one)
        made.setdefault(str(one.get("over", "domain")), {})[proof.output, proof.sign] = proof
    return made
