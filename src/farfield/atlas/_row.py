"""What the atlas says of one architecture: a row of plain data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from farfield.audit import Audit
from farfield.audit._worker import cut_or_growth
from farfield.growth import Status, Verdict

__all__ = ["KINDS", "AtlasRow", "audited"]

_LONGEST = 400
_NOT_BUILT = (
    ("parameters", "too large in the smallest configuration that was found"),
    ("none of the inputs", "it runs on none of the inputs that were tried"),
    ("connect", "it wants files from a hub"),
    ("locate the file", "it wants files from a hub"),
    ("Can't load", "it wants files from a hub"),
    ("library but it was not found", "it needs a package that is not installed"),
    ("ImportError", "it needs a package that is not installed"),
    ("ModuleNotFoundError", "it needs a package that is not installed"),
)
"""Words of a message → why the architecture was not built."""


@dataclass(frozen=True, slots=True)
class AtlasRow:
    """What is known of one architecture at small size with random weights: a verdict, or why there is none.

    Parameters
    ----------
    library, name, family, task
        Which architecture.
    verdict
        ``BOUNDED``, ``UNBOUNDED`` or ``UNKNOWN`` over all outputs and all real inputs at once; None where there is
        an error instead. A bound is not a claim of accuracy.
    inputs
        A JSON text: for each real input that moves while the others stand still, its name, verdict and reason.
    reason
        What bounds it; the rate of growth; or why it is not known.
    path
        The escape path of an output that is not bounded, and the norms that it goes around.
    checked
        ``holds``, ``contradicted`` or ``not run``: the verdicts against evaluations of the module out to 10⁶.
    evidence
        What those evaluations showed.
    capture
        How the program was captured; ``export`` is what a verdict is given for.
    parameters, operations
        Size of what was built.
    seconds
        Wall time of building, auditing and checking it; ``audit_seconds`` is the audit's share.
    stage, error, message
        Where it failed (``build``, ``audit``, ``check``), the error's type, and what it said.
    version
        Of the library.
    """

    library: str
    name: str
    family: str
    task: str
    verdict: str | None = None
    inputs: str | None = None
    reason: str | None = None
    path: str | None = None
    checked: str | None = None
    evidence: str | None = None
    capture: str | None = None
    parameters: int | None = None
    operations: int | None = None
    seconds: float | None = None
    audit_seconds: float | None = None
    stage: str | None = None
    error: str | None = None
    message: str | None = None
    version: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What names it."""
        return self.library, self.name

    @property
    def captured(self) -> bool:
        """Whether torch.export captured it: what the coverage is counted over."""
        return self.capture == "export"

    @property
    def cause(self) -> str | None:
        """Why there is no verdict of BOUNDED or UNBOUNDED, in a few words; None where there is one."""
        if self.verdict in ("BOUNDED", "UNBOUNDED"):
            return None
        message = self.message or ""
        if self.stage == "build":
            said = next(
                (why for words, why in _NOT_BUILT if words in message), "its small configuration is refused"
            )
            return f"not built: {said}"
        if self.verdict is None:
            return f"{self.error} while it was audited"
        if not self.captured:
            told = "DataDependent" in message
            return f"not captured: {'what it computes depends on values' if told else 'torch.export fails otherwise'}"
        return f"unknown: {(self.reason or '').partition(' (at ')[0].partition(' along ')[0]}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)


KINDS: dict[str, type] = {
    f.name: int if "int" in str(f.type) else float if "float" in str(f.type) else str
    for f in dataclasses.fields(AtlasRow)
}
"""Type of every column."""


def audited(result: Audit) -> dict[str, Any]:
    """The columns that an audit fills."""
    verdicts = result.report.verdicts
    joint = [v for v in verdicts if v.input is None]
    telling = next(v for v in joint if v.status is result.verdict)
    names = dict.fromkeys(v.input for v in verdicts if v.input is not None)
    alone = [_worst([v for v in verdicts if v.input == name]) for name in names]
    program = result.report.program
    lost = " ".join(program.unseen) if program.capture != "export" else ""
    return {
        "verdict": result.verdict.name,
        "inputs": json.dumps(
            [
                {"name": v.input, "verdict": v.status.name, "reason": _short(cut_or_growth(v, result))}
                for v in alone
            ],
            ensure_ascii=False,
        ),
        "reason": _short(
            cut_or_growth(telling, result) if names else "it takes no real input: ids are finitely many"
        ),
        "path": _short(str(telling.paths[0])) if telling.paths else None,
        "capture": program.capture,
        "message": _short(lost) or None,
        "parameters": int(result.subject["parameters"]),
        "operations": int(result.subject["nodes"]),
    }


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    order = (Status.UNBOUNDED, Status.UNKNOWN, Status.BOUNDED)
    return min(verdicts, key=lambda v: order.index(v.status))


def _short(text: str) -> str:
    text = " ".join(text.split()).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
