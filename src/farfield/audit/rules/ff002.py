"""FF002: a norm is there, and a path goes round it."""

from __future__ import annotations

import networkx as nx
import torch
from torch import Tensor, nn

from farfield.audit._context import Context
from farfield.audit._result import Finding, Outcome
from farfield.audit.rules import Judgment, Rule
from farfield.growth import Verdict

__all__ = ["RULE"]


class Residual(nn.Module):
    """A pre-norm residual block, with or without the final norm that closes its skip path."""

    def __init__(self, final: bool) -> None:
        super().__init__()
        self.embed, self.norm, self.mix = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 16)
        self.final = nn.LayerNorm(16) if final else nn.Identity()
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, 6) → (n, 1)."""
        h = self.embed(x)
        h = h + torch.relu(self.mix(self.norm(h)))
        out: Tensor = self.head(self.final(h))
        return out


def check(context: Context) -> Judgment:
    """Fires for every escape path that bypasses a norm standing between the same input and output."""
    if not context.norms:
        return Outcome.NOT_APPLICABLE, (), "the program has no norm to bypass"
    findings = []
    for verdict in context.escaping:
        path = next((p for p in verdict.paths if p.bypassed), None)
        cut = verdict.cut
        if path is None:
            aside = _beside(context, verdict)
            if aside:
                findings.append(aside)
            continue
        findings.append(
            Finding(
                "FF002",
                "error",
                f"{path}: the norm sits on one branch, and this path goes around it.",
                context.place(_joint(context, path.nodes)),
                f"Add a norm{_place(verdict)}, so that no path goes around it.",
                {
                    "path": list(path.labels),
                    "bypassed": list(path.bypassed),
                    "cut": list(cut.labels) if cut else [],
                },
            )
        )
    if findings:
        return Outcome.FAILED, findings, ""
    if context.escaping:
        return Outcome.PASSED, (), "the growth that remains does not go round a norm"
    return Outcome.PASSED, (), "every path from input to output is cut"


def _beside(context: Context, verdict: Verdict) -> Finding | None:
    """A norm on the way of one input only, another joining after it (an action beside normed features)."""
    if not verdict.paths:
        return None
    path = verdict.paths[0]
    graph = context.program.to_networkx()
    before = nx.ancestors(graph, verdict.output)
    norms = [n for n in context.norms if n.name in before and n.name not in path.nodes]
    if not norms:
        return None
    names = ", ".join(dict.fromkeys(n.module_path or n.name for n in norms))
    return Finding(
        "FF002",
        "error",
        f"{path}: {names} normalizes what comes from elsewhere, and {path.nodes[0]} joins after it.",
        context.place(_joint(context, path.nodes)),
        f"Join the inputs before the norm, or add one{_place(verdict)}.",
        {"path": list(path.labels), "bypassed": [n.module_path or n.name for n in norms]},
    )


def _joint(context: Context, nodes: tuple[str, ...]) -> str:
    """The node of the path where it meets the way through the norm: the first with an operand off the path."""
    on_path = set(nodes)
    program = context.program
    for name in nodes[1:]:
        node = program.node(name)
        others = [o for o in node.operands if o not in on_path and program.node(o).role == "operation"]
        if others:
            return name
    return nodes[-1]


def triggers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A pre-norm residual network without a final norm."""
    return Residual(final=False), (torch.zeros(1, 6),)


def passes() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The same with its final norm."""
    return Residual(final=True), (torch.zeros(1, 6),)


RULE = Rule("FF002", "an escape path bypasses a norm", check, triggers, passes)


def _place(verdict: Verdict) -> str:
    return (
        f" after {verdict.cut}" if verdict.cut is not None and verdict.cut.labels else " where the paths join"
    )
