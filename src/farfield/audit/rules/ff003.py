"""FF003: BatchNorm does not bound the output. In evaluation mode it is affine and bounds nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from farfield.audit._context import Context, by_stored_statistics
from farfield.audit._result import Finding, Outcome
from farfield.audit.rules import Judgment, Rule

__all__ = ["RULE"]


def check(context: Context) -> Judgment:
    """Fires for BatchNorms that growth passes through."""
    layers = [n for n in context.program.nodes if by_stored_statistics(n)]
    if not layers:
        return Outcome.NOT_APPLICABLE, (), "the program has no BatchNorm"
    table = context.report.analysis
    through = [n for n in layers if not table.growth(n.name).bounded]
    if not context.escaping or not through:
        return Outcome.PASSED, (), "BatchNorm is there, and the bound does not rest on it"
    first = through[0]
    kind = "a BatchNorm" if first.op == "batch_norm" else "an InstanceNorm that tracks statistics"
    more = f" (and {len(through) - 1} more)" if len(through) > 1 else ""
    finding = Finding(
        "FF003",
        "warning",
        f"{first.module_path or first.name}{more} is {kind}: with stored statistics it multiplies and adds "
        "constants, so growth passes through it unchanged.",
        context.place(first.name),
        "Keep it if training needs it; for a bound add a LayerNorm, RMSNorm or GroupNorm, which divide by the "
        "sample's own scale.",
        {"layers": [n.module_path or n.name for n in through]},
    )
    return Outcome.FAILED, (finding,), ""


def _mlp(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), norm, nn.ReLU(), nn.Linear(16, 1))


def triggers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """BatchNorm as the only norm."""
    return _mlp(nn.BatchNorm1d(16)).eval(), (torch.zeros(2, 6),)


def passes() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """BatchNorm followed by LayerNorm."""
    return _mlp(nn.Sequential(nn.BatchNorm1d(16), nn.LayerNorm(16))).eval(), (torch.zeros(2, 6),)


RULE = Rule("FF003", "BatchNorm does not bound the output", check, triggers, passes)
