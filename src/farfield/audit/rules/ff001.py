"""FF001: the model is unbounded, with a direction and a slope that prove it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from farfield.audit._context import Context
from farfield.audit._result import Finding, Outcome, Place
from farfield.audit.rules import Judgment, Rule
from farfield.growth import Status

__all__ = ["RULE"]


def check(context: Context) -> Judgment:
    """Fires once per unbounded output; unknown where an output is neither proved bounded nor unbounded."""
    findings = []
    for verdict in context.escaping:
        witness = verdict.witness
        if verdict.status is not Status.UNBOUNDED or witness is None:
            continue
        path = verdict.paths[0] if verdict.paths else None
        closing = verdict.cut.nodes[:1] if verdict.cut is not None else ()
        place = context.place(closing[0]) if closing else Place(node=verdict.output)
        findings.append(
            Finding(
                "FF001",
                "error",
                f"{verdict.output} grows without limit: {witness}."
                + (f" Escape path: {path}." if path is not None else ""),
                place,
                context.advice(verdict)
                + " If the target itself grows far away (a physical trend, a repulsion), bounding is the wrong fix.",
                {
                    "output": verdict.output,
                    "slope": witness.slope,
                    "degree": witness.degree,
                    "path": list(path.labels) if path else [],
                    "cut": list(verdict.cut.labels) if verdict.cut else [],
                },
            )
        )
    if findings:
        return Outcome.FAILED, findings, ""
    unknown = [v for v in context.escaping if v.status is Status.UNKNOWN]
    if unknown:
        return Outcome.UNKNOWN, (), "; ".join(str(v) for v in unknown)
    return Outcome.PASSED, (), "every output is proved bounded on all of Rⁿ"


def triggers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A plain ReLU network."""
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)), (torch.zeros(1, 6),)


def passes() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The same with one LayerNorm."""
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1)), (
        torch.zeros(1, 6),
    )


RULE = Rule("FF001", "the output grows without limit", check, triggers, passes)
