"""A small region by cells, whatever the network: the excess of a cell falls with the square of its size.

With more than five inputs cells cannot cover every input, but a region may be so small that a few of them are tight
over it. A short search shows whether it is. What it finds is checked again at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from farfield._budget import Clock
from farfield.certify._checks import Checks
from farfield.certify._proofs import CellsProof
from farfield.certify._provers import CELL_DIMENSIONS, AttainedPoint, Key, OutputCase, dimensions, reached
from farfield.certify._search import Attained
from farfield.certify._softmax import difference_program
from farfield.certify._task import Solution, Task, in_domain
from farfield.certify.affine import TooLargeError, build_network
from farfield.certify.cells import branch
from farfield.errors import FarfieldError

__all__ = ["solve_locally"]

MOST_DIMENSIONS = 32
SHARE = 0.2
"""Of the time, for the searches of all sides; checking the cells once takes about as long."""
GLANCE = 0.25
"""Of a search, after which it is given up if the region is too large."""
HOPE = 0.5
"""A bound that is further than this many attained widths from what is attained, after a glance, is left to others."""
COARSE = 3.0
"""The checker need not come closer to what is attained than this many times what the search came to.

Behind norms its bounds of a cell are about five times as far away.
"""
HALVING = 17.0
"""Times what checking the cells once takes, at most, to halve those above such a line."""
HALVING_SHARE = 0.5
"""Of what is left, for halving them."""
GAINED = 0.01
"""A checked bound this close to what is attained, in attained widths, leaves nothing to others."""


def solve_locally(
    task: Task, found: Attained, clock: Clock, check: Clock, say: Callable[[str], None]
) -> tuple[Solution, bool]:
    """(proofs of the sides for which cells are small enough, whether these leave nothing to gain)."""
    nothing = Solution({}, {})
    if not task.usable or difference_program(task.program, task.output) is not None:
        return nothing, False
    try:
        network = build_network(task.program, task.output, task.claimed[0], task.boxes)
    except TooLargeError:
        return nothing, False
    count = dimensions(network) if network.compact() else None
    if count is None or not CELL_DIMENSIONS < count <= MOST_DIMENSIONS:
        return nothing, False
    case = OutputCase(network, None, count, found)
    checks, searched = Checks(task, check), clock.share(SHARE)
    made: dict[Key, CellsProof] = {}
    witnesses: dict[Key, AttainedPoint] = {}
    keys = [(entry, sign) for entry in range(found.lower.numel()) for sign in task.signs]
    for done, key in enumerate(keys):
        if searched.over or clock.over:
            break
        say(f"output {key[0]}, {'upper' if key[1] > 0 else 'lower'} bound, cells of the region")
        proof, witness = _search(case, key, searched.share(1.0 / (len(keys) - done)))
        if proof is not None:
            made[key] = proof
        if witness is not None:
            witnesses[key] = witness
    once = _check_all(checks, made, dict.fromkeys(made, math.inf), clock)
    wanted = {key: proof.attained + COARSE * (proof.bound - proof.attained) for key, proof in made.items()}
    above = {key: proof for key, proof in made.items() if checks.proofs[key].bound > wanted[key]}
    if HALVING * once <= HALVING_SHARE * clock.seconds_left:
        _check_all(checks, above, wanted, clock)
    closed = all(
        key in checks.proofs and checks.proofs[key].bound - reached(found, key) <= GAINED * _width(found, key)
        for key in keys
    )
    return Solution(checks.proofs, in_domain(task, witnesses), tuple(checks.doubts)), closed


def _check_all(
    checks: Checks, proofs: Mapping[Key, CellsProof], enough: Mapping[Key, float], clock: Clock
) -> float:
    """Check proofs, no closer than is enough; the seconds that it takes."""
    begun = clock.elapsed
    for key, proof in proofs.items():
        checks.run(key, (proof,), 0.0, enough=enough[key])
    return clock.elapsed - begun


def _width(found: Attained, key: Key) -> float:
    """What is attained from one end to the other."""
    return float(found.upper[key[0]] - found.lower[key[0]])


def _search(case: OutputCase, key: Key, clock: Clock) -> tuple[CellsProof | None, AttainedPoint | None]:
    """Cells of one side; ``None`` where a glance shows that they are too large."""
    met, tolerance = reached(case.found, key), case.tolerance(key[0])
    try:
        proof, state = branch(
            case.network, *key, time_budget=clock.share(GLANCE), tolerance=tolerance, attained=met
        )
        if proof.bound - proof.attained > HOPE * _width(case.found, key):
            return None, None
        if not case.close(key, proof.bound):
            proof, _ = branch(
                case.network, *key, time_budget=clock, tolerance=tolerance, attained=met, state=state
            )
    except FarfieldError:
        return None, None
    return proof, AttainedPoint(proof.attained, proof.point) if proof.finite and proof.point else None
