"""Rules with stable codes over what growth and geometry find in a model.

Holds: the rules FF001…, the audit that runs them, ``audit_all`` over many checkpoints, a ``census`` of their
structure, ``assert_bounded``.
May import: certify, data, engine, errors, gaussian, graph, growth, report, _budget, _callable_module, _provenance,
_regular_file, _target, _text, _weights.
Never: renders: a result hands its plain data to report.
"""

from __future__ import annotations

from farfield._callable_module import make_callable
from farfield.audit._all import audit_all
from farfield.audit._assert import assert_bounded
from farfield.audit._audit import audit
from farfield.audit._census import Census, census
from farfield.audit._context import Context
from farfield.audit._registry import ModelEntry, read_registry
from farfield.audit._result import Audit, Finding, Outcome, Place, RuleResult, Severity
from farfield.audit._table import AuditRow, AuditTable
from farfield.audit.rules import Rule, rule, rule_codes

__all__ = [
    "Audit",
    "AuditRow",
    "AuditTable",
    "Census",
    "Context",
    "Finding",
    "ModelEntry",
    "Outcome",
    "Place",
    "Rule",
    "RuleResult",
    "Severity",
    "assert_bounded",
    "audit",
    "audit_all",
    "census",
    "read_registry",
    "rule",
    "rule_codes",
]

make_callable(__name__)
