"""A small region by cells, whatever the network: the excess of a cell falls with the square of its size.

With more than five inputs cells cannot cover every input, but a region may be so small that a few of them are tight
over it. A short search shows whether it is. What it finds is checked again at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from farfield._budget import Clock
from farfield.certify._checks import Checks
from farfield.certify._proofs import CellsProof
from farfield.certify._provers import CELL_DIMENSIONS, AttainedPoint, Key, OutputCase, dimensions, reached
from farfield.certify._search import Attained
from farfield.certify._softmax import difference_program
from farfield.certify._task import Solution, Task, in_domain
from farfield.certify.affine import Block, Network, TooLargeError, build_network
from farfield.certify.cells import CellsState, branch
from farfield.errors import FarfieldError

__all__ = ["solve_locally"]

MOST_DIMENSIONS = 32
GLANCE = 0.25
"""Of a search, after which it is given up if the region is too large."""


@dataclass(frozen=True)
class _Plan:
    """What cells are given.

    Parameters
    ----------
    search, check
        Shares of the time that is left, for the searches of all sides and then for checking what they found.
    hope
        A bound that is further than this many attained widths from what is attained, after a glance, is left to
        others.
    coarse
        The checker need not come closer to what is attained than this many times what the search came to: behind
        norms its bounds of a cell are about five times as far away.
    """

    search: float
    check: float
    hope: float
    coarse: float


USUAL = _Plan(0.2, 0.3, 0.5, 3.0)
LATE = _Plan(0.15, 0.85, 1.0, 1.5)
"""Where a norm stands behind other layers: other proofs know little of the region there."""
GAINED = 0.01
"""A checked bound this close to what is attained, in attained widths, leaves nothing to others."""


def solve_locally(
    task: Task, found: Attained, clock: Clock, check: Clock, say: Callable[[str], None]
) -> tuple[Solution, bool]:
    """(proofs of the sides for which cells are small enough, whether these leave nothing to gain)."""
    nothing = Solution({}, {})
    task = task.boxed
    if not task.usable or difference_program(task.program, task.output) is not None:
        return nothing, False
    try:
        network = build_network(task.program, task.output, task.claimed[0], task.boxes)
    except TooLargeError:
        return nothing, False
    count = dimensions(network) if network.compact() else None
    if count is None or not CELL_DIMENSIONS < count <= MOST_DIMENSIONS:
        return nothing, False
    case = OutputCase(network, None, count, found, task.cone)
    plan = LATE if any(_late(network, block) for block in network.blocks) else USUAL
    checks, searched = Checks(task, check), clock.share(plan.search)
    made: dict[Key, CellsProof] = {}
    witnesses: dict[Key, AttainedPoint] = {}
    keys = [(entry, sign) for entry in range(found.lower.numel()) for sign in task.signs]
    for done, key in enumerate(keys):
        if searched.over or clock.over:
            break
        say(f"output {key[0]}, {'upper' if key[1] > 0 else 'lower'} bound, cells of the region")
        proof, witness = _search(case, key, searched.share(1.0 / (len(keys) - done)), plan.hope)
        if proof is not None:
            made[key] = proof
        if witness is not None:
            witnesses[key] = witness
    _check(checks, made, clock.share(plan.check), plan.coarse)
    closed = all(
        key in checks.proofs and checks.proofs[key].bound - reached(found, key) <= GAINED * _width(found, key)
        for key in keys
    )
    over = dict.fromkeys(checks.proofs, task.mark)
    return Solution(checks.proofs, in_domain(task, witnesses), tuple(checks.doubts), over), closed


def _late(network: Network, block: Block) -> bool:
    """Whether a norm divides something else than an affine map of the input."""
    if block.kind != "norm" or block.form is None:
        return False
    return any(network.blocks[i].form is not None for i in block.form.matrices)


def _check(checks: Checks, made: Mapping[Key, CellsProof], clock: Clock, coarse: float) -> None:
    """Check all proofs once, then closer where there is time; what nobody could check bounds nothing."""
    wanted = {key: proof.attained + coarse * (proof.bound - proof.attained) for key, proof in made.items()}
    for lines in (dict.fromkeys(made, math.inf), wanted):
        left = [key for key in made if key not in checks.proofs or checks.proofs[key].bound > wanted[key]]
        for done, key in enumerate(left):
            checks.run_cells(key, made[key], lines[key], clock.share(1.0 / (len(left) - done)))


def _width(found: Attained, key: Key) -> float:
    """What is attained from one end to the other."""
    return float(found.upper[key[0]] - found.lower[key[0]])


def _search(
    case: OutputCase, key: Key, clock: Clock, hope: float
) -> tuple[CellsProof | None, AttainedPoint | None]:
    """Cells of one side; ``None`` where a glance shows that they are too large."""
    met, tolerance = reached(case.found, key), case.tolerance(key[0])
    best: CellsProof | None = None
    state: CellsState | None = None
    try:
        # The region as one cell first: halves of a ball may be worse than the whole to begin with.
        for part in (Clock(math.inf, 1, clock), clock.share(GLANCE), clock):
            proof, state = branch(
                case.network, *key, time_budget=part, tolerance=tolerance, attained=met, state=state,
                cone=case.cone,
            )  # fmt: skip
            best = proof if best is None or proof.bound < best.bound else best
            if case.close(key, best.bound):
                break
            if state.bounded > 1 and best.bound - proof.attained > hope * _width(case.found, key):
                return None, None
    except FarfieldError:
        return None, None
    assert best is not None
    return best, AttainedPoint(proof.attained, proof.point) if proof.finite and proof.point else None
