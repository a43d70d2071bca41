"""Proofs checked again before they are published."""

from __future__ import annotations

import math
from collections.abc import Sequence

from farfield._budget import Clock
from farfield.certify._proofs import CellsProof, DualProof, Proof, weakened
from farfield.certify._provers import Key
from farfield.certify._task import Task
from farfield.certify.checker import CertificateError, proof_reader

__all__ = ["RECHECKED_CELLS", "RECHECK_RATE", "Checks", "by_checker"]

RECHECKED_CELLS = 20_000
"""Proofs of up to this many cells are checked again before they are published, where there is time."""
RECHECK_RATE = 1.5
"""Seconds that checking cells again takes for each second of searching them; 1 to 1.5 was measured."""


def by_checker(proof: Proof) -> bool:
    """Whether a proof is one that the checker alone makes rigorous."""
    return isinstance(proof, DualProof) and proof.by_checker


class Checks:
    """Proofs with bounds that the checker proves as well: where its arithmetic is coarser, its bound is published.

    Cells are left out where there are many, or where a budget in seconds leaves no time for them: the checker halves
    what it finds too large. Wherever it was counted it looked at three to six cells for each one listed, and it may
    look at seventeen. A proof that rests on the checker alone, and that it does not prove, gives way to the next one.
    """

    def __init__(self, task: Task, clock: Clock) -> None:
        self.proofs: dict[Key, Proof] = {}
        self.doubts: list[str] = []
        self._read = proof_reader(task.model, task.output, task.asked or task.domain)
        self._mark = {"over": "cone"} if task.asked else {}
        self._clock = clock

    def run(self, key: Key, proofs: Sequence[Proof], spent: float, enough: float = -math.inf) -> None:
        """The first of these proofs that holds; a search of cells took so many seconds to find them.

        The checker takes no pains to prove a smaller bound than ``enough``.
        """
        for proof in proofs:
            self.proofs[key] = proof
            if isinstance(proof, CellsProof) and (
                proof.cells > RECHECKED_CELLS or RECHECK_RATE * spent > self._clock.seconds_left
            ):
                return
            try:
                again = self._read({**proof.to_dict(), **self._mark, "bound": max(proof.bound, enough)})
                if math.isnan(again):
                    raise CertificateError("The checker's bound is not a number")
                self.proofs[key] = weakened(proof, max(proof.bound, again))
                return
            except CertificateError as error:
                if not by_checker(proof):
                    self.doubts.append(f"{str(error).rstrip('.')}; this bound rests on the search alone.")
                    return
