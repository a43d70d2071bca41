"""Where a captured call came from: the module that ran it and the line that wrote it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

__all__ = ["module_of", "source_of"]

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TORCH = str(Path(torch.__file__).parent)
_READER = str(Path(__file__).parent / "onnx")
"""Runs the operators of a file: its lines say nothing of where a model was written."""


def module_of(meta: dict[str, Any]) -> tuple[str, str]:
    """Dotted path and class name of the innermost module; ``("", "")`` where the capture recorded none."""
    stack = meta.get("nn_module_stack")
    if not stack:
        return "", ""
    path, kind = list(stack.values())[-1]
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return _plain_path(path), name.rpartition(".")[2]


def _plain_path(path: str) -> str:
    """The path as ``named_modules`` spells it: a shared module's later calls carry ``@1``, ``@2``, …."""
    path = path.removeprefix("L['self']").lstrip(".")
    path = re.sub(r"@\d+", "", path)
    return re.sub(r"\[['\"]?([^\]'\"]+)['\"]?\]", r".\1", path).lstrip(".")


def source_of(meta: dict[str, Any]) -> str | None:
    """``file:line`` of the innermost frame outside torch; ``None`` for a model that was read from a file."""
    trace = meta.get("stack_trace")
    if not trace:
        return None
    frames = [(m["file"], m["line"]) for m in _FRAME.finditer(trace)]
    for file, line in reversed(frames):
        if not file.startswith((_TORCH, _READER, "<")):
            return f"{file}:{line}"
    return None
