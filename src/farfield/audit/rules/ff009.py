"""FF009: a norm on a raw, low-dimensional input removes a scale the model may need."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from farfield.audit._context import Context
from farfield.audit._result import Finding, Outcome
from farfield.audit.rules import Judgment, Rule
from farfield.audit.rules.ff004 import normalized_size

__all__ = ["RULE"]

_LOW = 32
"""Raw inputs with more features than this (images, embeddings) usually carry their meaning in directions."""


def check(context: Context) -> Judgment:
    """Fires for a norm whose operand is a model input as it came, with at most 32 features."""
    if not context.norms:
        return Outcome.NOT_APPLICABLE, (), "the program has no norm"
    findings = []
    for node in context.norms:
        raw = context.reaches_raw(node.operands[0])
        size = normalized_size(node, context.program.node(node.operands[0]))
        if not raw or size is None or size > _LOW:
            continue
        findings.append(
            Finding(
                "FF009",
                "warning",
                f"{node.module_path or node.name} normalizes the raw input {', '.join(raw)} ({size} features): x and "
                "10·x become the same, so a magnitude that matters (a speed, an action, a dose) is lost.",
                context.place(node.name),
                "Standardize the input with fixed statistics and put the norm after the first Linear: its bias keeps "
                "the scale.",
                {"inputs": list(raw), "size": size},
            )
        )
    if findings:
        return Outcome.FAILED, findings, ""
    return Outcome.PASSED, (), "no norm acts on a raw low-dimensional input"


class Critic(nn.Module):
    """A critic that normalizes its action vector before or after the first layer."""

    def __init__(self, raw: bool) -> None:
        super().__init__()
        self.squash = nn.LayerNorm(4) if raw else nn.Identity()
        self.first, self.norm, self.head = nn.Linear(8 + 4, 32), nn.LayerNorm(32), nn.Linear(32, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Shapes (n, 8), (n, 4) → (n, 1)."""
        h = self.first(torch.cat([state, self.squash(action)], -1))
        out: Tensor = self.head(torch.relu(self.norm(h)))
        return out


def triggers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """LayerNorm on the action vector."""
    return Critic(raw=True), (torch.zeros(1, 8), torch.zeros(1, 4))


def passes() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """LayerNorm after the first Linear."""
    return Critic(raw=False), (torch.zeros(1, 8), torch.zeros(1, 4))


RULE = Rule("FF009", "a norm on a raw low-dimensional input", check, triggers, passes)
