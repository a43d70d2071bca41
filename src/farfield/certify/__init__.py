"""Bounds for every input: what a network's output can be, proved, and checked by someone else.

Holds: interval propagation, branch and bound over cells, the quadratic dual, the search for what is attained,
certificates and their checker. May import: growth, graph, gaussian, errors, _typing. Never: renders, or trains.
"""

from __future__ import annotations

from farfield._callable_module import make_callable
from farfield.certify._certificate import Certificate
from farfield.certify._certify import UnboundedError, certify
from farfield.certify._hash import model_hash
from farfield.certify._search import Attained, attained

__all__ = ["Attained", "Certificate", "UnboundedError", "attained", "certify", "model_hash"]

make_callable(__name__)
