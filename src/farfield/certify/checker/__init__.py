"""The checker: someone who trusts neither the prover nor its author can rely on what it accepts.

Holds: plain intervals, a reading of programs, the bound that a dual's multipliers give, mean-value forms over cells.
May import: certify, errors, graph, _regular_file.
Never: anything else of certify, or a number of the prover's.
"""

from __future__ import annotations

from farfield.certify.checker._said import Verification
from farfield.certify.checker._values import CertificateError
from farfield.certify.checker._verify import (
    check_program,
    proof_reader,
    read_certificate,
    uncheckable,
    verify_certificate,
)

__all__ = [
    "CertificateError",
    "Verification",
    "check_program",
    "proof_reader",
    "read_certificate",
    "uncheckable",
    "verify_certificate",
]
