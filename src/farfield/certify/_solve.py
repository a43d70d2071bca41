"""Proofs for every entry and side of an output over a domain, checked again before anyone sees them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from farfield._budget import Clock
from farfield.certify._checks import Checks, by_checker
from farfield.certify._local import solve_locally
from farfield.certify._proofs import (
    DualProof,
    IntervalProof,
    Proof,
    SoftmaxProof,
    read_proof,
)
from farfield.certify._provers import (
    AttainedPoint,
    Key,
    OutputCase,
    Prover,
    by_dual,
    by_nested,
    knows_region,
    prepare,
    provers,
    reached,
)
from farfield.certify._search import Attained, attained
from farfield.certify._softmax import DIFFERENCES, confidence, difference_program, pairs
from farfield.certify._task import OWN, Solution, Task, in_domain, kept
from farfield.certify._together import begin_together, is_time_for_ranges, pace, proof_seconds

__all__ = [
    "published",
    "read_proofs",
    "solve_domain",
]

ALLOWANCE = 2e-9
"""Published bounds are wider than proved ones by this much of themselves: a checker rounds differently."""
LAYER_SHARE = 0.45
"""Of the time, for the ranges of deep layers, where there are some."""
FIRST_GUESS = 0.05
"""Of what is left, at least, for the searches of all sides: none of them is skipped before the time is up."""
CONE_SHARES = (0.5, 0.9)
"""Of the time over a region, for its cone; the second where a norm stands behind an affine map of the inputs."""


# -- proofs ----------------------------------------------------------------------------------------------------------


def solve_domain(
    task: Task, found: Attained, clock: Clock, check: Clock, say: Callable[[str], None],
    earlier: Mapping[str, Mapping[Key, Proof]],
) -> Solution:  # fmt: skip
    """The best proofs over the task's domain, by its own program and in homogeneous coordinates.

    ``earlier`` are proofs that exist already, by what they are over (:func:`read_proofs`). A model that is bounded
    everywhere spends a share of its time in homogeneous coordinates (``CONE_SHARES``), all of it over a half-space.
    A small region is tried by cells first.
    """
    if task.domain["kind"] == "all":
        return solve(task, found, clock, check, say, earlier.get(OWN, {}))
    local, closed = solve_locally(task, found, clock, check, say, earlier)
    if closed:  # an earlier proof may be better still
        for over in (OWN, "box", "cone", "everywhere"):
            local = local.joined(earlier.get(over, {}), over)
        return local
    outer, made = task.outer, None
    if not task.usable or outer.claimed[1] is None:
        knows = knows_region(outer.network)
        share = clock.share(CONE_SHARES[knows]) if task.usable else clock
        there = solve(outer, found, share, check, say, earlier.get("cone", {}))
        met = kept(
            task.domain, task.model, there.witnesses
        )  # where a domain has no cone, these were met anywhere
        made = replace(there, over=dict.fromkeys(there.proofs, "cone"), witnesses=met)
    if task.usable:
        own = solve(task, found, clock, check, say, earlier.get(OWN, {}))
        if made is not None:
            own = own.joined(made.proofs, "cone")
            own = replace(
                own, witnesses={**made.witnesses, **own.witnesses}, doubts=(*own.doubts, *made.doubts)
            )
        made = own
    assert made is not None
    made = made.joined(local.proofs, task.boxed.mark).joined(earlier.get("box", {}), "box")
    made = replace(
        made, witnesses={**local.witnesses, **made.witnesses}, doubts=(*made.doubts, *local.doubts)
    )
    return made.joined(earlier.get("everywhere", {}), "everywhere")


def solve(
    task: Task, found: Attained, clock: Clock, check: Clock, say: Callable[[str], None],
    resume: Mapping[Key, Proof],
) -> Solution:  # fmt: skip
    """(entry, sign) → the best proof there is time for, as the checker proves it."""
    task.require_bounded()
    solution = _solve(task, found, clock, check, say, resume)
    solution = replace(solution, witnesses=in_domain(task, solution.witnesses))
    return _confidences(task, solution, clock, check, say)


def _solve(
    task: Task, found: Attained, clock: Clock, check: Clock, say: Callable[[str], None],
    resume: Mapping[Key, Proof],
) -> Solution:  # fmt: skip
    claim = task.claimed[0][task.output]
    best: dict[Key, Proof] = {}
    for i, (lo, hi) in enumerate(zip(claim.lo.reshape(-1), claim.hi.reshape(-1), strict=True)):
        for sign in task.signs:
            best[i, sign] = IntervalProof(i, sign, float(hi) if sign > 0 else -float(lo))
    intervals = dict(best)
    best |= {key: _better(best[key], old) for key, old in resume.items() if key in best}
    plain = {key: intervals[key] if by_checker(proof) else proof for key, proof in best.items()}
    witnesses: dict[Key, AttainedPoint] = {}
    spent: dict[Key, float] = {}

    def candidates(key: Key) -> list[Proof]:
        """What may be published of a side: what was found, what was there before, and what needs no checker."""
        return [best[key], *([resume[key]] if key in resume else []), plain[key]]

    case = None
    if task.network is not None and difference_program(task.program, task.output) is None:
        case = prepare(task.program, task.network, found, task.cone)
    checks = Checks(task, check)
    stages = [] if case is None else _stages(case)
    for number, stage in enumerate(stages):
        assert case is not None
        done = clock.over or all(case.close(key, proof.bound) for key, proof in best.items())
        if done:
            break
        plain |= {key: proof for key, proof in best.items() if not by_checker(proof)}
        kept = 0.0  # seconds for what the first proof's check does for all of them
        after = 0.0  # seconds from the end of a search to the end of its check
        if stage[0][0] is by_dual:
            sides = [
                k for k in best if not case.close(k, best[k].bound) and not isinstance(best[k], DualProof)
            ]
            step = pace(case, sides, clock)
            after, share = proof_seconds(case, step), case.recheck_share(clock.seconds_left)
            if case.deep and is_time_for_ranges(
                len(sides), clock, after, share + (1.0 - share) * LAYER_SHARE
            ):
                say("ranges of deep layers")
                case = case.tightened(clock.share((1.0 - share) * LAYER_SHARE))
                kept = share * clock.seconds_left if case.layers else 0.0
            say("all sides at once")
            case = begin_together(case, sides, clock, step)
        if stage[0][0] is by_nested:
            say("a bound below what the last norm divides by")
            case = case.anchored(clock)
            earlier = any(isinstance(proof, DualProof) and proof.nested for proof in best.values())
            if not earlier and not case.nesting_pays(clock, len(best)):
                stage = [(by_dual, 0.97)]
        jobs = sorted(best, key=lambda k: -(best[k].bound - reached(found, k)))
        for tried, key in enumerate(jobs):
            if clock.over:
                break
            say(f"output {key[0]}, {'upper' if key[1] > 0 else 'lower'} bound")
            begun, turn = clock.elapsed, _turn(clock, len(jobs) - tried, kept + after * (len(jobs) - tried))
            _prove(case, key, best, witnesses, turn, stage)
            spent[key] = spent.get(key, 0.0) + clock.elapsed - begun
            if number == len(stages) - 1 and isinstance(best[key], DualProof):
                checks.run(key, candidates(key), spent[key])
            after, kept = max(after, -turn.seconds_left - kept), 0.0
    say("checking the proofs again")
    for key in sorted(set(best) - set(checks.proofs), key=lambda k: spent.get(k, 0.0)):
        checks.run(key, candidates(key), spent.get(key, 0.0))
    behind = len(case.problem.curves) if case is not None and case.problem is not None else 0
    return Solution(checks.proofs, witnesses, tuple(checks.doubts), behind=behind)


def _turn(clock: Clock, jobs: int, owed: float) -> Clock:
    """The share of one of so many jobs, when so many seconds are kept for what comes after their searches.

    Where there is no time for all of them, those that have their turn get as far as a first guess.
    """
    seconds = clock.seconds_left
    free = 1.0 if math.isinf(seconds) else max(FIRST_GUESS, 1.0 - owed / max(seconds, 1e-9))
    return clock.share(free / jobs)


def _stages(case: OutputCase) -> list[Sequence[tuple[Prover, float]]]:
    """Provers that take turns at one entry and side; where layers are deep, cells come first for all of them.

    What is searched for all sides takes much of the time, and where cells have closed every gap nobody needs it.
    """
    chosen = provers(case)
    apart = case.behind > 0 or case.nested is not None
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


def _confidences(
    task: Task, solution: Solution, clock: Clock, check: Clock, say: Callable[[str], None]
) -> Solution:
    """Behind a softmax: bounds on the logits' differences, and through them on every probability."""
    model = difference_program(task.model, task.output)
    if model is None:
        return solution
    inner = Task.over(model, DIFFERENCES, task.domain, (1,))
    inner = replace(inner, cone=task.cone, asked=task.asked, mark=task.mark)
    if inner.claimed[1] is not None:
        return solution
    generator = torch.Generator().manual_seed(0)
    found = attained(
        model,
        DIFFERENCES,
        time_budget=clock.share(0.1),
        generator=generator,
        domain=task.asked or task.domain,
    )
    differences = _solve(inner, found, clock, check, say, {})
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
    """The proofs of a certificate by what they are over: its domain, the box around it, its cone, or everywhere."""
    made: dict[str, dict[Key, Proof]] = {}
    for one in data:
        proof = read_proof(one)
        made.setdefault(str(one.get("over", OWN)), {})[proof.output, proof.sign] = proof
    return made
