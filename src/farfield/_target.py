"""Models and inputs by name: a callable in a module, a file, a local folder of transformers, a shape."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farfield.errors import FarfieldError, InvalidValueError, MissingExtraError, ModelCodeError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["build", "example_input", "load_target", "named_arguments"]


def example_input(spec: str) -> Tensor:
    """A tensor from ``1x8``, ``1x8:float64`` or ``1x16:int64`` (token ids, all zero).

    Raises
    ------
    InvalidValueError
        With the form expected.
    """
    import torch

    sizes, _, kind = spec.partition(":")
    dtype = getattr(torch, kind or "float32", None)
    try:
        shape = [int(s) for s in sizes.lower().split("x")]
    except ValueError:
        shape = []
    if not shape or any(s < 1 for s in shape) or not isinstance(dtype, torch.dtype):
        raise InvalidValueError(
            f"An input is sizes joined by x, with an optional type: 1x8, 1x3x32x32, 1x16:int64. Got {spec!r}."
        )
    size, memory = math.prod(shape) * dtype.itemsize, _memory()
    if size > memory:
        raise InvalidValueError(
            f"An input of {sizes} entries takes {size / 1e9:,.0f} GB, more than the {memory / 1e9:,.0f} GB of this "
            "machine. A bound holds for every batch: give one row, such as 1x8."
        )
    return torch.zeros(shape, dtype=dtype)


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # pragma: no cover (not on Linux or macOS)
        return float(2**40)


def load_target(
    target: str,
    *,
    trust: bool = False,
    weights: str | Path | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Any:
    """The model behind ``pkg.mod:callable``, a ``.pt2`` or ``.onnx`` file or ``hf:<folder>``.

    A callable is called without arguments if it is not itself a module; a class is instantiated. A file is read
    later, without running anything in it; ``weights`` is a file of weights for the module that is built with
    ``arguments``. With ``trust`` a ``.pt2`` file is read here by ``torch.export.load``, which can run code
    in it.
    """
    whole = target.startswith("hf:") or target.endswith((".pt2", ".onnx"))
    if whole and (weights is not None or arguments):
        raise InvalidValueError(
            f"{target!r} is a whole model: --weights and --arg are for a module that is built, pkg.mod:callable."
        )
    if target.startswith("hf:"):
        return _transformers(Path(target[3:]))
    if target.endswith((".pt2", ".onnx")):
        if not Path(target).exists():
            raise InvalidValueError(f"There is no file {target!r}.")
        if not trust or target.endswith(".onnx"):
            return target
        import torch

        try:
            return torch.export.load(target)
        except Exception as error:
            first = str(error).strip().partition("\n")[0][:300]
            raise InvalidValueError(
                f"torch can't read {target!r}: {type(error).__name__}: {first}."
            ) from error
    model = build(target, arguments)
    if weights is not None:
        from farfield._weights import put_weights, read_weights

        put_weights(model, read_weights(Path(weights)))
    return model


def named_arguments(words: Sequence[str]) -> dict[str, Any]:
    """``["width=256", "act=relu"]`` → ``{"width": 256, "act": "relu"}``: JSON where it is JSON, else text."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidValueError(f"--arg is name=value, such as width=256; got {word!r}.")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def build(target: str, arguments: Mapping[str, Any] | None = None) -> nn.Module:
    """The module that ``pkg.mod:callable`` is or makes, called with the arguments. Runs the code it names.

    Raises
    ------
    InvalidValueError
        If there is no such callable, or it makes something else.
    """
    from torch import nn

    module_name, _, attribute = target.rpartition(":")
    if target.endswith((".pt", ".pth", ".ckpt", ".bin", ".safetensors")):
        raise InvalidValueError(
            f"{target!r} holds weights, not a model: give the callable that builds the module, pkg.mod:callable "
            f"or file.py:Class, and --weights {target}."
        )
    if not module_name or not attribute:
        raise InvalidValueError(
            f"A target is 'pkg.mod:callable', 'file.py:Class', a .pt2 or .onnx file or 'hf:<folder>'; got "
            f"{target!r}. "
            "For a saved module, write a function that builds and loads it."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = (
            _from_file(Path(module_name))
            if module_name.endswith(".py")
            else importlib.import_module(module_name)
        )
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise InvalidValueError(f"There is no module {module_name!r} here or on the path.") from error
        raise _own_error(module_name, error) from error
    except (FarfieldError, MemoryError):
        raise
    except Exception as error:
        raise _own_error(module_name, error) from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = [n for n in vars(module) if not n.startswith("_") and callable(getattr(module, n))]
            raise InvalidValueError(
                f"{module_name!r} has no attribute {attribute!r}. It has: {', '.join(near) or 'nothing'}."
            )
        found = getattr(found, part)
    try:
        model = found if isinstance(found, nn.Module) else found(**(arguments or {}))
    except (FarfieldError, MemoryError):
        raise
    except Exception as error:
        raise _own_error(target, error) from error
    if not isinstance(model, nn.Module):
        raise InvalidValueError(f"{target!r} returned a {type(model).__name__}, not a torch.nn.Module.")
    return model


def _from_file(path: Path) -> Any:
    """The module in a file of source code, which is run; its folder is on the path as for a script."""
    if not path.is_file():
        raise InvalidValueError(f"There is no file {str(path)!r}.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidValueError(f"{str(path)!r} can't be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _own_error(target: str, error: Exception) -> ModelCodeError:
    """What the model's own code raised, and where: the last frame that is not ours."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    own = [f for f in frames if not f.filename.startswith("<frozen")]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
    if isinstance(error, SyntaxError):
        place = f" ({Path(error.filename or '?').name}, line {error.lineno})"
    said = " ".join(str(error).split())[:300]
    return ModelCodeError(f"The model's own code, {target!r}, raised {type(error).__name__}: {said}{place}.")


def _transformers(folder: Path) -> Any:
    if not folder.is_dir():
        raise InvalidValueError(
            f"hf: takes a local folder with config.json and weights; there is no folder {str(folder)!r}."
        )
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("Loading a transformers folder", "transformers", "transformers") from error
    try:
        return transformers.AutoModel.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file, a missing one, code that would have to be trusted
        said = " ".join(str(error).split())[:300]
        raise InvalidValueError(
            f"transformers can't read {str(folder)!r} without running code in it: {type(error).__name__}: {said}"
        ) from error
