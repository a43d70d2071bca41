"""A small region by cells, whatever the network: the excess of a cell falls with the square of its size.

With more than five inputs cells cannot cover every input, but a region may be so small that a few of them are tight
over it. A short search shows whether it is. What it finds is checked again at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from farfield._budget import Clock
from farfield.certify._checks import Checks
from farfield.certify._proofs import CellsProof, Proof
from farfield.certify._provers import CELL_DIMENSIONS, AttainedPoint, Key, OutputCase, dimensions, reached
from farfield.certify._search import Attained
from farfield.certify._softmax import difference_program
from farfield.certify._task import Solution, Task, in_domain
from farfield.certify.affine import Block, Network
from farfield.certify.cells import CellsState, branch
from farfield.errors import FarfieldError

__all__ = ["solve_locally"]

MOST_DIMENSIONS = 32
WHOLE = 0.25
"""Of the time, at most, for every side as one cell."""
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
    task: Task, found: Attained, clock: Clock, check: Clock, say: Callable[[str], None],
    earlier: Mapping[str, Mapping[Key, Proof]],
) -> tuple[Solution, bool]:  # fmt: skip
    """(proofs of the sides for which cells are small enough, whether these leave nothing to gain).

    ``earlier`` are proofs that exist already, by what they are over: what these leave most open has its turn first.
    """
    nothing = Solution({}, {})
    task = task.boxed
    network = task.network
    if network is None or not task.usable or difference_program(task.program, task.output) is not None:
        return nothing, False
    count = dimensions(network) if network.compact() else None
    if count is None or not CELL_DIMENSIONS < count <= MOST_DIMENSIONS:
        return nothing, False
    case = OutputCase(network, None, count, found, task.cone)
    plan = LATE if any(_late(network, block) for block in network.blocks) else USUAL
    checks = Checks(task, check)
    known = {
        key: min((proofs[key].bound for proofs in earlier.values() if key in proofs), default=math.inf)
        for key in ((entry, sign) for entry in range(found.lower.numel()) for sign in task.signs)
    }
    keys = [key for key, bound in known.items() if not case.close(key, bound)]
    keys.sort(key=lambda key: reached(found, key) - known[key])
    searches = _search_all(case, keys, clock, plan, say)
    made = {key: one.proof for key, one in searches.items()}
    _check(checks, made, clock.share(plan.check), _lines(case, made, plan))
    bounds = known | {key: min(known[key], proof.bound) for key, proof in checks.proofs.items()}
    closed = all(bound - reached(found, k) <= GAINED * _width(found, k) for k, bound in bounds.items())
    over = dict.fromkeys(checks.proofs, task.mark)
    witnesses = {key: one.witness for key, one in searches.items() if one.witness is not None}
    return Solution(checks.proofs, in_domain(task, witnesses), tuple(checks.doubts), over), closed


def _late(network: Network, block: Block) -> bool:
    """Whether a norm divides something else than an affine map of the input."""
    if block.kind != "norm" or block.form is None:
        return False
    return any(network.blocks[i].form is not None for i in block.form.matrices)


def _lines(case: OutputCase, made: Mapping[Key, CellsProof], plan: _Plan) -> dict[Key, float]:
    """How close the checker need come; to those that others are left to, not at all."""
    return {
        key: proof.attained + plan.coarse * (proof.bound - proof.attained)
        if _hopeful(case, key, proof, plan)
        else math.inf
        for key, proof in made.items()
    }


def _hopeful(case: OutputCase, key: Key, proof: CellsProof, plan: _Plan) -> bool:
    """Whether cells are small enough for this side."""
    return proof.bound - reached(case.found, key) <= plan.hope * _width(case.found, key)


def _check(checks: Checks, made: Mapping[Key, CellsProof], clock: Clock, wanted: Mapping[Key, float]) -> None:
    """Check all proofs once, then closer where there is time; what nobody could check bounds nothing."""
    for lines in (dict.fromkeys(made, math.inf), wanted):
        left = [key for key in made if key not in checks.proofs or checks.proofs[key].bound > wanted[key]]
        for done, key in enumerate(left):
            checks.run_cells(key, made[key], lines[key], clock.share(1.0 / (len(left) - done)))


def _width(found: Attained, key: Key) -> float:
    """What is attained from one end to the other."""
    return float(found.upper[key[0]] - found.lower[key[0]])


@dataclass(frozen=True)
class _SideSearch:
    """One side: the best proof so far, and where its search stopped."""

    proof: CellsProof
    state: CellsState
    witness: AttainedPoint | None


def _search_all(
    case: OutputCase, keys: Sequence[Key], clock: Clock, plan: _Plan, say: Callable[[str], None]
) -> dict[Key, _SideSearch]:
    """Every side as one cell; then a glance at each, and those that are not hopeless to the end of the time.

    What is hopeless stays one cell: that costs next to nothing to check, and may be all that there is time for.
    """
    made: dict[Key, _SideSearch] = {}
    whole, rest = clock.share(WHOLE), clock.share(plan.search)

    def go_on(keys: Sequence[Key], until: Clock, share: float | None) -> None:
        for done, key in enumerate(keys):
            if until.over:
                return
            say(f"output {key[0]}, {'upper' if key[1] > 0 else 'lower'} bound, cells of the region")
            turn = Clock(math.inf, 1, clock) if share is None else until.share(share / (len(keys) - done))
            with suppress(FarfieldError):  # this entry is not one for cells
                made[key] = _searched(case, key, turn, made.get(key))

    def open_(keys: Iterable[Key]) -> list[Key]:
        return [key for key in keys if not case.close(key, made[key].proof.bound)]

    go_on(keys, whole, None)
    first = dict(made)
    go_on(open_(made), rest, GLANCE)
    hopeful = [key for key in made if _hopeful(case, key, made[key].proof, plan)]
    go_on(open_(hopeful), rest, 1.0)
    return {key: one if key in hopeful else replace(one, proof=first[key].proof) for key, one in made.items()}


def _searched(case: OutputCase, key: Key, clock: Clock, before: _SideSearch | None) -> _SideSearch:
    """A search goes on. Halves of a ball may be worse than the whole to begin with, so the best tree is kept."""
    proof, state = branch(
        case.network, *key, time_budget=clock, tolerance=case.tolerance(key[0]),
        attained=reached(case.found, key), state=None if before is None else before.state, cone=case.cone,
    )  # fmt: skip
    witness = AttainedPoint(proof.attained, proof.point) if proof.finite and proof.point else None
    best = proof if before is None or proof.bound < before.proof.bound else before.proof
    return _SideSearch(best, state, witness)
