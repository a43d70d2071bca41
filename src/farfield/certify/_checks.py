"""Proofs checked again before they are published."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from farfield._budget import Clock
from farfield.certify._proofs import CellsProof, DualProof, IntervalProof, Proof, weakened
from farfield.certify._provers import Key
from farfield.certify._task import Task
from farfield.certify.checker import CertificateError, proof_reader
from farfield.graph import real_size

__all__ = ["RECHECKED_CELLS", "RECHECK_RATE", "Checks", "by_checker"]

RECHECKED_CELLS = 20_000
"""Proofs of up to this many cells are checked again before they are published, where there is time."""
RECHECK_RATE = 1.5
"""Seconds that checking cells again takes for each second of searching them; 1 to 1.5 was measured."""
ROOM = 2.0
"""Times the width of what the checker proves at one point, for cells that nobody has checked."""


def by_checker(proof: Proof) -> bool:
    """Whether a proof is one that the checker alone makes rigorous."""
    return isinstance(proof, DualProof) and proof.by_checker


class Checks:
    """Proofs with bounds that the checker proves as well: where its arithmetic is coarser, its bound is published.

    Cells are left out where there are many, or where a budget in seconds leaves no time for them: the checker halves
    what it finds too large. Wherever it was counted it looked at three to six cells for each one listed, and it may
    look at seventeen. A bound that was not checked to the end gets room for the checker's rounding.

    A proof that rests on the checker alone, and that it does not prove, gives way to the next one.
    """

    def __init__(self, task: Task, clock: Clock) -> None:
        self.proofs: dict[Key, Proof] = {}
        self.doubts: list[str] = []
        domain = task.asked or task.domain
        self._read = proof_reader(task.model, task.output, domain, lambda: self._until.seconds_left <= 0)
        self._mark = {"over": task.mark}
        self._task, self._clock, self._until = task, clock, clock

    def run(self, key: Key, proofs: Sequence[Proof], spent: float) -> None:
        """The best of these proofs that hold; a search of cells took so many seconds to find them.

        Once a proof is found to come to no less than what another one states, that one is not looked at.
        """
        for place, proof in enumerate(proofs):
            known = self.proofs.get(key)
            if any(proof is earlier for earlier in proofs[:place]):
                continue
            if known is None or proof.bound < known.bound:
                made = self._checked(proof, spent, known is not None)
                if made is not None and (known is None or made.bound < known.bound):
                    self.proofs[key] = made

    def _checked(self, proof: Proof, spent: float, others: bool) -> Proof | None:
        """A proof with a bound that holds; ``None`` where the checker refuses it, if it must or there are others."""
        if isinstance(proof, CellsProof) and (
            proof.cells > RECHECKED_CELLS or RECHECK_RATE * spent > self._clock.seconds_left
        ):
            return self._with_room(proof)
        try:
            again = self._again(proof, proof.bound, self._clock)
        except CertificateError as error:
            if others or by_checker(proof):
                return None
            self.doubts.append(f"{str(error).rstrip('.')}; this bound rests on the search alone.")
            return self._with_room(proof)
        if isinstance(proof, CellsProof) and again > proof.bound and self._clock.seconds_left <= 0:
            return self._with_room(proof)  # the check was not finished
        return weakened(proof, max(proof.bound, again))

    def run_cells(self, key: Key, proof: CellsProof, line: float, until: Clock) -> None:
        """Cells with the bound that the checker proves by then; it takes no pains to come below the line.

        An earlier check's bound stays where it is the smaller one. What the checker does not support bounds nothing.
        """
        try:
            again = self._again(proof, max(proof.bound, line), until)
        except CertificateError:
            again = math.inf
        earlier = self.proofs.get(key)
        self.proofs[key] = weakened(
            proof, min(max(proof.bound, again), earlier.bound if earlier else math.inf)
        )

    def _again(self, proof: Proof, line: float, until: Clock) -> float:
        """What the checker proves."""
        self._until = until
        again = self._read({**proof.to_dict(), **self._mark, "bound": line})
        if math.isnan(again):
            raise CertificateError("The checker's bound is not a number")
        return again

    def _with_room(self, proof: Proof) -> Proof:
        """Cells that nobody checks: room for what the checker loses to rounding at one point."""
        if not isinstance(proof, CellsProof):
            return proof
        program, boxes = self._task.program, self._task.boxes
        point = list(proof.point) if proof.finite and proof.point else [0.0] * real_size(program)
        if boxes and not proof.point:
            point = torch.cat([(box.lo / 2 + box.hi / 2).reshape(-1) for box in boxes.values()]).tolist()
        try:
            read = proof_reader(program, self._task.output, {"kind": "box", "lower": point, "upper": point})
            high, low = (read(IntervalProof(proof.output, s, math.inf).to_dict()) for s in (1, -1))
        except CertificateError:
            return proof
        lost = high + low
        return weakened(proof, proof.bound + ROOM * lost) if math.isfinite(lost) else proof
