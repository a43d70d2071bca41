"""FF005: a norm is in the module tree, or asked for by a flag, and never on the executed path."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from farfield.audit._context import Context
from farfield.audit._result import Finding, Outcome, Place
from farfield.audit.rules import Judgment, Rule

__all__ = ["RULE"]

_NORM_CLASS = re.compile(
    r"(layer|rms|group|instance|batch|local|scale|power|ada)\w*norm|^norm\w*$|norm\d*d?$", re.IGNORECASE
)
_NOT_A_NORM = re.compile(r"weight_?norm|spectral_?norm|parametri[sz]", re.IGNORECASE)
_FLAG = re.compile(
    r"^(use_|with_|apply_|do_|add_)?(layer|rms|group|pre|post)?_?(norm|layernorm|ln)(ali[sz]e|ali[sz]ation)?$",
    re.IGNORECASE,
)


def _is_norm(kind: str) -> bool:
    return bool(_NORM_CLASS.search(kind)) and not _NOT_A_NORM.search(kind)


def _flags(model: nn.Module) -> list[tuple[str, str, str]]:
    """(module path, class, attribute) of every truthy switch that asks for a norm."""
    found = []
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if (value is True or (isinstance(value, str) and _is_norm(value))) and _FLAG.match(key):
                found.append((path, type(module).__name__, key))
    return found


def check(context: Context) -> Judgment:
    """Fires for norms that are built and not run, and for flags that ask for one where none runs."""
    program = context.program
    built = {path: kind for path, kind in program.modules.items() if _is_norm(kind)}
    executed = {n.module_path for n in program.nodes if n.role == "operation"}
    # A container counts as run if anything inside it is.
    running = {path for path in built if any(e == path or e.startswith(path + ".") for e in executed)}
    if program.capture == "modules":
        return Outcome.UNKNOWN, (), "the model could not be traced, so what is executed is not known"
    findings = [
        Finding(
            "FF005",
            "warning",
            f"{path} ({kind}) is built and never used: no value on the way to an output passes it.",
            Place(path, kind),
            "Call it in forward, or delete it. If it was meant to bound the model, it does not.",
            {"module": path},
        )
        for path, kind in built.items()
        if path not in running
    ]
    for path, kind, flag in _flags(context.model) if context.model is not None else ():
        inside = path + "." if path else ""
        if any(n.module_path.startswith(inside) or n.module_path == path for n in context.norms):
            continue
        if any(f.place.module_path.startswith(inside) for f in findings):
            continue
        findings.append(
            Finding(
                "FF005",
                "warning",
                f"{path or kind}.{flag} asks for a norm, and no norm runs inside {path or 'the model'}.",
                Place(path, kind),
                "Make the flag build and call the norm, or drop it.",
                {"flag": flag},
            )
        )
    if findings:
        return Outcome.FAILED, findings, ""
    if not built:
        return Outcome.NOT_APPLICABLE, (), "the model has no norm module"
    return Outcome.PASSED, (), f"all {len(built)} norm modules are on the executed path"


class Forgotten(nn.Module):
    """Builds a norm; calls it only if told to."""

    def __init__(self, called: bool) -> None:
        super().__init__()
        self.inner, self.norm, self.head, self.called = (
            nn.Linear(4, 16),
            nn.LayerNorm(16),
            nn.Linear(16, 1),
            called,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, 4) → (n, 1)."""
        h = self.inner(x)
        if self.called:
            h = self.norm(h)
        out: Tensor = self.head(torch.relu(h))
        return out


def triggers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The norm is built and not called."""
    return Forgotten(called=False), (torch.zeros(1, 4),)


def passes() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """It is called."""
    return Forgotten(called=True), (torch.zeros(1, 4),)


RULE = Rule("FF005", "a norm that is never executed", check, triggers, passes)
