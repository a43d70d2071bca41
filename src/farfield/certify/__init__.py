"""Bounds for every input: what a network's output can be, proved, and checked by someone else.

Holds: interval propagation, branch and bound over cells, the quadratic dual, the search for what is attained,
certificates, their checker, and a penalty that trains a network into a range.
May import: errors, gaussian, graph, growth, nn, report, _budget, _callable_module, _provenance, _regular_file, _text,
_typing.
Never: renders: a result hands its plain data to report.
"""

from __future__ import annotations

from farfield._callable_module import make_callable
from farfield.certify._certificate import Certificate
from farfield.certify._certify import UnboundedError, certify
from farfield.certify._domain import around
from farfield.certify._hash import model_hash
from farfield.certify._search import Attained, attained
from farfield.certify._verify import verify_certificate
from farfield.certify.checker import CertificateError, Verification
from farfield.certify.rollout import RolloutCertificate, RolloutVerdict, certify_rollout, verify_rollout
from farfield.certify.training._penalty import OutputRangePenalty

__all__ = [
    "Attained",
    "Certificate",
    "CertificateError",
    "OutputRangePenalty",
    "RolloutCertificate",
    "RolloutVerdict",
    "UnboundedError",
    "Verification",
    "around",
    "attained",
    "certify",
    "certify_rollout",
    "model_hash",
    "verify_certificate",
    "verify_rollout",
]

make_callable(__name__)
