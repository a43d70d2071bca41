"""The rules, one file each, by code.

Holds: ``ff001`` … and the registry.
May import: audit, errors, gaussian, graph, growth.
Never: renders, or reuses a code.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from farfield.audit._context import Context
from farfield.audit._result import Finding, Outcome, RuleResult
from farfield.errors import UnknownNameError

__all__ = ["Judgment", "Rule", "rule", "rule_codes", "run_rules"]

_CODES = ("FF001", "FF002", "FF003", "FF004", "FF005", "FF006", "FF007", "FF008", "FF009", "FF010")

Judgment = tuple[Outcome, Sequence[Finding], str]
"""What a check returns: outcome, findings, and why there are none."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    Parameters
    ----------
    code
        Stable for ever; never reused.
    title
        What it looks for, in a few words.
    check
        ``check(context) -> (outcome, findings, reason)``.
    triggers, passes
        Minimal examples: functions returning (model, example inputs) on which the rule fires and does not.
    """

    code: str
    title: str
    check: Callable[[Context], Judgment] = field(repr=False)
    triggers: Callable[[], tuple[Any, tuple[Any, ...]]] = field(repr=False)
    passes: Callable[[], tuple[Any, tuple[Any, ...]]] = field(repr=False)


def rule_codes() -> tuple[str, ...]:
    """Every code, in order."""
    return _CODES


def rule(code: str) -> Rule:
    """The rule of that code.

    Raises
    ------
    UnknownNameError
        With near matches.
    """
    if code not in _CODES:
        raise UnknownNameError("rule", code, _CODES)
    found: Rule = importlib.import_module(f"farfield.audit.rules.{code.lower()}").RULE
    return found


def run_rules(context: Context, codes: Sequence[str] | None = None) -> tuple[RuleResult, ...]:
    """Every rule (or only ``codes``) over one context, in order of code."""
    results = []
    for code in _CODES if codes is None else sorted(codes):
        item = rule(code)
        try:
            outcome, findings, reason = item.check(context)
        except Exception as error:  # a verdict that was found is not lost to a rule that fails
            said = f"the rule failed: {type(error).__name__}: {str(error)[:300]}"
            outcome, findings, reason = Outcome.UNKNOWN, (), said
        results.append(RuleResult(item.code, item.title, outcome, tuple(findings), reason))
    return tuple(results)
