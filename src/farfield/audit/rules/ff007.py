"""FF007: growth faster than linear, from products, powers or exponentials of the input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from farfield.audit._context import Context
from farfield.audit._result import Finding, Outcome
from farfield.audit.rules import Judgment, Rule
from farfield.growth import Growth, Kind

__all__ = ["RULE"]


def _superlinear(growth: Growth) -> bool:
    if growth.kind is Kind.EXPONENTIAL:
        return True
    return growth.kind is Kind.POLYNOMIAL and (growth.degree or 0.0) > 1.0


def check(context: Context) -> Judgment:
    """Fires for an output whose growth bound is superlinear, at the node where it becomes so."""
    table, program = context.report.analysis, context.program
    findings = []
    for verdict in context.escaping:
        if not _superlinear(verdict.growth):
            continue
        path = next(iter(verdict.paths), None)
        order = path.nodes if path is not None else (verdict.output,)
        start = next((name for name in order if _superlinear(table.growth(name))), verdict.output)
        node = program.node(start)
        proved = verdict.witness is not None and verdict.witness.degree > 1.0
        findings.append(
            Finding(
                "FF007",
                "warning",
                f"{verdict.output} {'grows' if proved else 'may grow'} faster than linearly ({verdict.growth}), from "
                f"{node.module_path or node.name} ({node.op}) on.",
                context.place(start),
                "Normalize or saturate one of the factors before the product, power or exponential.",
                {"growth": str(verdict.growth), "op": node.op, "proved": proved},
            )
        )
    if findings:
        return Outcome.FAILED, findings, ""
    if any(v.growth.kind is Kind.UNKNOWN for v in context.escaping):
        return Outcome.UNKNOWN, (), "the growth of an output is not known"
    return Outcome.PASSED, (), "no output grows faster than linearly"


class Product(nn.Module):
    """A gate times a value; the gate saturates or not."""

    def __init__(self, saturating: bool) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(6, 8), nn.Linear(6, 8)
        self.squash = nn.Sigmoid() if saturating else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, 6) → (n, 8)."""
        out: Tensor = self.squash(self.gate(x)) * self.value(x)
        return out


def triggers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Two linear maps multiplied: degree two."""
    return Product(saturating=False), (torch.zeros(1, 6),)


def passes() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A sigmoid gate: degree one (still unbounded, which is FF001's to say)."""
    return Product(saturating=True), (torch.zeros(1, 6),)


RULE = Rule("FF007", "growth faster than linear", check, triggers, passes)
