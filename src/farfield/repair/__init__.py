"""Make a trained model bounded, without retraining it and the same where its data are.

Holds: ``repair``, what it puts where (minimum cut), how much (streamed statistics, one budget of unchanged rows), and
what changed.
May import: audit, calibration, certify, errors, graph, growth, nn, report, _budget, _callable_module, _regular_file,
_weights.
Never: changes the model it is given.
"""

from __future__ import annotations

from farfield._callable_module import make_callable
from farfield.repair._candidates import Candidate, Candidates, compare_repairs
from farfield.repair._change import Change, FarRow
from farfield.repair._curves import ComparedCurve, SizeHistogram
from farfield.repair._insert import Insertion
from farfield.repair._repair import RepairError, repair
from farfield.repair._restore import restore
from farfield.repair._result import Repair

__all__ = [
    "Candidate",
    "Candidates",
    "Change",
    "ComparedCurve",
    "FarRow",
    "Insertion",
    "Repair",
    "RepairError",
    "SizeHistogram",
    "compare_repairs",
    "repair",
    "restore",
]

make_callable(__name__)
