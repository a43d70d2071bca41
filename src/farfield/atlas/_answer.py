"""What a worker does for the atlas: build one architecture, audit it, check the verdict."""

from __future__ import annotations

import importlib.metadata
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from farfield.atlas._evidence import check_verdicts
from farfield.atlas._libraries import build
from farfield.atlas._row import audited
from farfield.audit import audit
from farfield.audit._unsettle import unsettle

__all__ = ["answer"]

_NAMES = {True: "holds", False: "contradicted", None: "not run"}


def answer(library: str, name: str, family: str, *, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The columns of one architecture; what went wrong is part of them."""
    begun = time.monotonic()
    row: dict[str, Any] = {}
    stage = "build"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row["version"] = importlib.metadata.version(library)
            model, inputs = build(library, name, family)
            torch.manual_seed(0)
            unsettle(model)
            stage = "audit"
            tell({"stage": stage, "row": row})
            start = time.monotonic()
            result = audit(model, inputs, name=name, rays=0, codes=())
            row |= {**audited(result), "audit_seconds": time.monotonic() - start}
            stage = "check"
            # Sent ahead: an evaluation that has to be ended does not take the verdict with it.
            tell({"stage": stage, "row": {**row, "seconds": time.monotonic() - begun}})
            evidence = check_verdicts(model, inputs, result.report, result.inputs)
            row |= {"checked": _NAMES[evidence.holds], "evidence": evidence.said}
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:400]
        row |= {"stage": stage, "error": type(error).__name__, "message": said}
    return {**row, "seconds": time.monotonic() - begun}
