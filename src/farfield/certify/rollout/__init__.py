"""Steps that are fed back: what one step's bound says about every step.

Holds: the split of a step into its state's linear part and the rest, powers of a matrix with what rounding hides,
rollout certificates.
May import: certify, certify.affine, certify.checker, errors, graph, report, _budget, _regular_file.
Never: searches by itself; the rest of a step is bounded as any model is.
"""

from __future__ import annotations

from farfield.certify.rollout._certificate import RolloutCertificate, RolloutVerdict
from farfield.certify.rollout._powers import Powers, powers
from farfield.certify.rollout._rollout import certify_rollout, verify_rollout
from farfield.certify.rollout._split import StepSplit, split_step

__all__ = [
    "Powers",
    "RolloutCertificate",
    "RolloutVerdict",
    "StepSplit",
    "certify_rollout",
    "powers",
    "split_step",
    "verify_rollout",
]
