"""The process that audits one model after another for somebody else, who can end it.

Requests come on standard input, one JSON object a line; replies leave on what was standard output. A model that
prints does so on standard error. The end of standard input ends the process, so no worker outlives its parent.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from farfield._budget import Budget
from farfield._regular_file import UnsafeFileError, open_regular
from farfield.audit._audit import audit
from farfield.audit._confine import confine
from farfield.audit._load import load_checkpoint
from farfield.audit._registry import ModelEntry
from farfield.audit._result import Audit
from farfield.certify import UnboundedError, certify
from farfield.growth import Status, Verdict

__all__ = ["cut_or_growth", "main", "message_of", "rehearse", "short"]

IDLE = 120.0
"""Seconds without a request after which a worker goes; its parent starts another when it has one."""
_LONGEST = 1000
_NO_MEMORY = ("can't allocate memory", "bad_alloc", "Cannot allocate memory")
"""In the message of an error that is about memory, whatever its type: torch's is a RuntimeError."""
Tell = Callable[[dict[str, Any]], None]


def main(limits: str) -> None:
    """Answer requests until there are none, within limits: :class:`Limits`, as JSON."""
    allowed = json.loads(limits)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    confine(allowed["memory"])

    def tell(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply, allow_nan=False) + "\n")
        replies.flush()

    torch.set_num_threads(1)
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    tell({"ready": True})
    while True:
        try:
            request = json.loads(requests.get(timeout=IDLE))
        except queue.Empty:
            return
        if "read" in request:
            tell({"stage": "read"})
            tell({"done": read(str(request["read"]))})
            continue
        _reset(request["search"])
        tell({"stage": "load"})
        if "task" in request:
            tell({"done": _called(request["task"], request["arguments"], tell)})
            continue
        tell({"done": answer(request, tell)})


def rehearse() -> None:
    """Audit and certify two models of our own, so that all that a first model loads is there before workers fork.

    In the thread that calls it, and no other is left behind.
    """
    torch.set_num_threads(1)
    example = torch.zeros(1, 2)
    plain = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).eval()
    normed = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.ReLU(), nn.Linear(3, 1)).eval()
    for model in (plain, normed):
        audit(model, example, rays=0)
    certify(normed, example, time_budget=Budget(steps=1))


def _called(task: str, arguments: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """What ``pkg.mod:function`` of farfield's own returns: rooms above this one use the same workers."""
    module, _, name = task.partition(":")
    row: dict[str, Any] = getattr(importlib.import_module(module), name)(**arguments, tell=tell)
    return row


def _read(requests: queue.Queue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # the parent has gone: whatever is being computed is nobody's


def _reset(search: Sequence[str]) -> None:
    """What an earlier builder may have left behind; and where the caller finds builders, its own folder first."""
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    first, *others = search
    if first not in sys.path:
        sys.path.insert(0, first)
    sys.path += [path for path in others if path not in sys.path]


def read(path: str) -> dict[str, Any]:
    """Size and digest of a file, or why there are none."""
    begun = time.monotonic()
    digest, size = hashlib.sha256(), 0
    try:
        with open_regular(path) as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
    except (UnsafeFileError, OSError) as error:
        name = type(error.__cause__ or error).__name__
        return {"stage": "read", "error": name, "message": message_of(error)}
    return {"bytes": size, "sha256": digest.hexdigest(), "seconds": time.monotonic() - begun}


def answer(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """The row of one request; what went wrong is part of it, whatever it was."""
    begun = time.monotonic()
    row: dict[str, Any] = {}
    stage = "load"
    try:
        entry = ModelEntry(
            str(request["path"]), tuple(request["inputs"]), request["builder"], request["arguments"]
        )
        model, inputs = load_checkpoint(entry, Path(str(request["file"])))
        stage = "audit"
        tell({"stage": stage})
        # Rays are drawn on a page, so without one none are evaluated.
        result = audit(model, inputs, name=entry.path, rays=6 if request["details"] else 0)
        row = summary(result)
        if request["details"]:
            place = Path(str(request["details"]))
            place.write_text(json.dumps(result.to_dict()), encoding="utf-8")
        if request["certify"] and result.verdict is Status.BOUNDED:
            stage = "certify"
            # Sent ahead: a search that has to be ended does not take the verdict with it.
            tell({"stage": stage, "row": {**row, "seconds": time.monotonic() - begun}})
            row |= _certified(model, inputs, result, float(request["certify"]), str(request["certificate"]))
    except (Exception, SystemExit) as error:
        name, message = type(error).__name__, message_of(error)
        if isinstance(error, MemoryError) or any(words in message for words in _NO_MEMORY):
            name, message = "MemoryError", f"It needs more memory than the limit allows. {message}".strip()
        row |= {"stage": stage, "error": name, "message": message}
    return {**row, "seconds": time.monotonic() - begun}


def summary(result: Audit) -> dict[str, Any]:
    """An audit as a row."""
    joint = [v for v in result.report.verdicts if v.input is None]
    telling = next(v for v in joint if v.status is result.verdict)
    reason = short(_reason(telling, result))
    row: dict[str, Any] = {
        "verdict": result.verdict.name,
        "reason": f"{telling.output}: {reason}" if len(joint) > 1 else reason,
        "findings": " ".join(dict.fromkeys(f.code for f in result.findings)),
        "parameters": int(result.subject["parameters"]),
        "operations": int(result.subject["nodes"]),
    }
    if result.verdict is Status.BOUNDED:
        low = min(v.growth.interval[0] for v in joint)
        high = max(v.growth.interval[1] for v in joint)
        if math.isfinite(low) and math.isfinite(high):
            row |= {"low": low, "high": high, "bound_by": "audit"}
    return row


def cut_or_growth(verdict: Verdict, result: Audit) -> str:
    """What bounds the output, how it grows, or why it is not known."""
    if verdict.status is Status.BOUNDED and verdict.cut is not None and verdict.cut.nodes:
        kinds = [result.report.program.node(name).module_type for name in verdict.cut.nodes]
        said = [
            f"{label} ({kind})" if kind and kind != label else label
            for label, kind in zip(verdict.cut.labels, kinds, strict=True)
        ]
        return f"cut by {', '.join(said)}"
    return str(verdict).partition(": ")[2]


def _reason(verdict: Verdict, result: Audit) -> str:
    text = cut_or_growth(verdict, result)
    if verdict.status is Status.UNBOUNDED and verdict.paths:
        return f"{text}; escapes along {verdict.paths[0]}"
    return text


def _certified(model: Any, inputs: Any, result: Audit, seconds: float, stem: str) -> dict[str, Any]:
    outputs = result.report.program.outputs
    if isinstance(model, ExportedProgram) and any(t.shape[:1] != (1,) for t in inputs):
        inputs = ()  # a program's sizes are its own: one row of the example need not fit it
    lows: list[float] = []
    highs: list[float] = []
    tightness: list[float] = []
    files: list[str] = []
    for output in outputs:
        try:
            found = certify(model, inputs, time_budget=seconds / len(outputs), output=output)
        except UnboundedError as error:
            # Bounded, and no number for it: that is an answer.
            return {"note": message_of(error)}
        file = Path(f"{stem}.json" if len(outputs) == 1 else f"{stem}.{len(files)}.json")
        found.save(file)
        files.append(file.name)
        lows.append(float(found.lower.min()))
        highs.append(float(found.upper.max()))
        tightness.append(float(found.tightness.max()))
    low, high, loosest = min(lows), max(highs), max(tightness)
    row: dict[str, Any] = {"certificate": " ".join(files)}
    if math.isfinite(low) and math.isfinite(high):
        row |= {"low": low, "high": high, "bound_by": "certificate"}
    return row | ({"tightness": loosest} if math.isfinite(loosest) else {})


def message_of(error: BaseException) -> str:
    """What an error says, on one line."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return short(text)


def short(text: str) -> str:
    """The text, cut off where a row ends."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
