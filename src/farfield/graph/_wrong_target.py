"""What was passed where a model belongs, and the line that works instead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

__all__ = ["instead_of", "wrong_path"]

_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")


def wrong_path(path: str | os.PathLike[str]) -> str | None:
    """Why this path is no model's, and what to do; ``None`` where it may be one."""
    shown, suffix = repr(os.fspath(path)), Path(path).suffix
    if suffix in (".pt2", ".onnx"):
        return None if os.path.lexists(path) else f"There is no file {shown}."
    if suffix in _WEIGHTS:
        return (
            f"{shown} holds weights, not a model. Build the module, model.load_state_dict(torch.load(path)), and "
            "pass the module; in a shell, farfield audit file.py:Class --weights PATH."
        )
    if ":" in os.fspath(path):
        return f"{shown} names a callable, which commands load: in Python import it, and pass the module it makes."
    return f"A model's file is an exported program, .pt2, or an .onnx file; got {shown}."


def instead_of(value: Any) -> str:
    """What an object is that is no model, and the line that works.

    Examples
    --------
    >>> print(instead_of(nn.Linear))
    Linear is a class, and a model is a module: pass an instance, such as Linear(…) with its weights loaded.
    """
    kind = type(value).__name__
    if isinstance(value, type):
        return (
            f"{value.__name__} is a class, and a model is a module: pass an instance, such as {value.__name__}(…) "
            "with its weights loaded."
        )
    if isinstance(value, Mapping) and value and all(isinstance(v, Tensor) for v in value.values()):
        return "A state dict holds weights, not a model: model.load_state_dict(weights), and pass the module."
    modules = _modules_of(value)
    if modules:
        named = ", ".join(f".{path} ({type(module).__name__})" for path, module in modules[:6])
        return f"{kind} is no module, and holds some. Pass one of its networks: {named}."
    words = {c.__module__.partition(".")[0] for c in type(value).__mro__}
    if words & {"xgboost", "lightgbm", "catboost"} or hasattr(value, "estimators_"):
        return (
            f"{kind} is an ensemble of trees, not a network: it is constant far from its data, and its range is "
            "that of the sums of its leaves. farfield takes networks: nn.Module, .pt2 or .onnx."
        )
    if hasattr(value, "predict") and hasattr(value, "get_params"):
        return (
            f"{kind} is no module. Write a scikit-learn model as ONNX and pass the path: "
            "open('model.onnx', 'wb').write(skl2onnx.to_onnx(model, X[:1]).SerializeToString())."
        )
    more = " Wrap a function in a module whose forward calls it." if callable(value) else ""
    return (
        f"A model is an nn.Module, an ExportedProgram or the path of a .pt2 or .onnx file, not {kind}.{more}"
    )


def _modules_of(value: Any) -> list[tuple[str, nn.Module]]:
    """Attribute path → networks inside an object: skorch's ``module_``, an agent's actor and critics."""
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()
    for name, part in getattr(value, "__dict__", {}).items():
        if name.startswith("_") or not isinstance(part, nn.Module) or id(part) in seen:
            continue
        children = dict(part.named_children()) if name == "policy" else {}
        inner = [(f"{name}.{child}", module) for child, module in children.items()]
        seen |= {id(part), *(id(module) for _, module in inner)}
        found += [pair for pair in inner if list(pair[1].parameters())] or [(name, part)]
    return found
