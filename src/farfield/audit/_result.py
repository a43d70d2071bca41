"""What an audit returns: a verdict, one result per rule, and everything a report draws, as plain data."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

from torch import Tensor

from farfield.audit._rays import rays
from farfield.growth import GrowthReport, Status, Witness

__all__ = ["Audit", "Finding", "Outcome", "Place", "RuleResult", "Severity"]

Severity: TypeAlias = Literal["error", "warning", "note"]


class Outcome(enum.StrEnum):
    """What a rule found. *Not applicable* and *unknown* are results, not silence."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the model: module path, source line where known, node of the program."""

    module_path: str = ""
    module_type: str = ""
    source: str | None = None
    node: str = ""

    def __str__(self) -> str:
        where = self.module_path or self.node or "the model"
        kind = f" ({self.module_type})" if self.module_type and self.module_path else ""
        return f"{where}{kind}" + (f" at {self.source}" if self.source else "")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a rule found: what, where, why one may believe it, and what to do.

    Parameters
    ----------
    code
        Stable: ``FF001`` …
    severity
        ``error`` (a guarantee is absent), ``warning`` (it is there, and something is wrong) or ``note``.
    message
        What was found, one or two sentences.
    place
        Where.
    action
        What to do next.
    evidence
        Numbers and names behind it, plain data.
    """

    code: str
    severity: Severity
    message: str
    place: Place
    action: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A rule's outcome, its findings and, where it did not fire, why not."""

    code: str
    title: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Audit:
    """The result of :func:`farfield.audit.audit`.

    Parameters
    ----------
    verdict
        ``BOUNDED``, ``UNBOUNDED`` or ``UNKNOWN`` over all outputs and all inputs at once. A bound is not a claim
        of accuracy.
    results
        One per rule, in order of code.
    report
        The growth analysis behind it: verdict per output and input, every node's growth.
    inputs
        The example inputs, flattened.
    ray_count
        How many random rays :attr:`rays` evaluates.
    subject
        What was audited: name, class, number of parameters, inputs, outputs, how it was captured.
    provenance
        Versions, commit, settings.
    data
        Outputs on the rows that were given, and ten standard deviations away from them; None without data.
    """

    verdict: Status
    results: tuple[RuleResult, ...]
    report: GrowthReport = field(repr=False)
    inputs: tuple[Tensor, ...] = field(repr=False)
    ray_count: int
    subject: Mapping[str, Any] = field(repr=False)
    provenance: Mapping[str, Any] = field(repr=False)
    data: Mapping[str, Any] | None = field(default=None, repr=False)

    @cached_property
    def rays(self) -> Mapping[str, Any]:
        """The program evaluated along a few rays, for a plot; computed when first asked for."""
        return rays(self.report, self.inputs, self.ray_count)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the rules that fired found, gravest first."""
        order = {"error": 0, "warning": 1, "note": 2}
        found = [f for r in self.results for f in r.findings]
        return tuple(sorted(found, key=lambda f: (order[f.severity], f.code)))

    @property
    def witness(self) -> Witness | None:
        """The direction and slope that prove UNBOUNDED, if it is."""
        return self.report.witness

    def __str__(self) -> str:
        from farfield.report import audit_text

        return audit_text(self._without_rays())

    def _repr_html_(self) -> str:
        from farfield.report import audit_summary

        return audit_summary(self._without_rays())

    def to_html(self, *, certificate: Any = None) -> str:
        """One page that loads nothing: verdict, program, rays, findings and proofs.

        Parameters
        ----------
        certificate
            Of the same model, from :func:`farfield.certify.certify`: its bounds become a section of the page.
        """
        from farfield.report import render_html

        return render_html(self.to_dict(), None if certificate is None else certificate.to_dict())

    def plot(self, *, ax: Any = None) -> Any:
        """Draw |f(λu)| along :attr:`rays`, the proved bound, and the norms of the data; needs ``farfield[plot]``.

        Parameters
        ----------
        ax
            matplotlib axes to draw on; those of a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes
        """
        from farfield.report import plot_audit

        return plot_audit(self.to_dict(), ax=ax)

    def _without_rays(self) -> dict[str, Any]:
        """Plain data for words: printing a result runs no model."""
        return self._plain({"output": "", "radii": [], "series": []})

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, HTML, SARIF and the terminal."""
        return self._plain(self.rays)

    def _plain(self, rays: Mapping[str, Any]) -> dict[str, Any]:
        from farfield.report._data import plain

        return {
            "verdict": self.verdict.name,
            "subject": plain(self.subject),
            "findings": [plain(f) for f in self.findings],
            "rules": [
                {
                    "code": r.code,
                    "title": r.title,
                    "outcome": r.outcome.value,
                    "reason": r.reason,
                    "findings": len(r.findings),
                }
                for r in self.results
            ],
            "growth": self.report.to_dict(),
            "graph": _graph(self.report),
            "rays": plain(rays),
            "data": plain(self.data),
            "provenance": plain(self.provenance),
        }


def _graph(report: GrowthReport) -> dict[str, Any]:
    """Nodes that depend on an input, with their growth; constants are left out."""
    program, table = report.program, report.analysis
    nodes = [
        n for n in program.nodes if n.role != "constant" and not (n.role == "operation" and not n.operands)
    ]
    names = {n.name for n in nodes}
    return {
        "nodes": [
            {
                "name": n.name,
                "op": n.op,
                "role": n.role,
                "module_path": n.module_path,
                "module_type": n.module_type,
                "shape": [str(d) for d in n.shape],
                "source": n.source,
                "growth": table.growth(n.name).kind.value,
            }
            for n in nodes
        ],
        "edges": [[a, n.name] for n in nodes for a in dict.fromkeys(n.operands) if a in names],
    }
