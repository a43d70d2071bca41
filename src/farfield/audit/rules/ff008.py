"""FF008: bounded only because the head saturates. True, and its gradients vanish far away."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from farfield.audit._context import Context
from farfield.audit._result import Finding, Outcome
from farfield.audit.rules import Judgment, Rule
from farfield.growth import Status

__all__ = ["RULE", "SATURATING"]

SATURATING = frozenset({
    "tanh", "sigmoid", "hardtanh", "hardsigmoid", "softsign", "erf", "softmax", "clamp", "relu6", "atan",
})  # fmt: skip


def check(context: Context) -> Judgment:
    """Fires when every path is cut by saturating functions alone, the pre-activations growing without limit."""
    if context.status is not Status.BOUNDED:
        return Outcome.NOT_APPLICABLE, (), "the model is not proved bounded"
    program, table = context.program, context.report.analysis
    findings = []
    for verdict in context.report.verdicts:
        if verdict.input is not None or verdict.cut is None or not verdict.cut.nodes:
            continue
        nodes = [program.node(name) for name in verdict.cut.nodes]
        growing = [n for n in nodes if any(not table.growth(o).bounded for o in n.operands)]
        if not growing or any(n.op not in SATURATING for n in nodes):
            continue
        first = growing[0]
        findings.append(
            Finding(
                "FF008",
                "note",
                f"{verdict.output} is bounded only because {first.module_path or first.name} ({first.op}) saturates: "
                "what feeds it grows without limit, so far away the output sticks to an end of the range and its "
                "gradient is zero.",
                context.place(first.name),
                "If far inputs matter in training, add a norm before the head as well.",
                {"cut": list(verdict.cut.labels), "ops": sorted({n.op for n in nodes})},
            )
        )
    if findings:
        return Outcome.FAILED, findings, ""
    return Outcome.PASSED, (), "the bound does not rest on saturation alone"


def triggers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A tanh head on a plain network."""
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1), nn.Tanh()), (torch.zeros(1, 6),)


def passes() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A norm before it."""
    return (
        nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1), nn.Tanh()),
        (torch.zeros(1, 6),),
    )


RULE = Rule("FF008", "bounded only by a saturating head", check, triggers, passes)
