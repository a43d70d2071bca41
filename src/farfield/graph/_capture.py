"""The front door: a model, an exported program or a file, in; a :class:`Program` out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves, tree_map

from farfield._regular_file import UnsafeFileError
from farfield.errors import FarfieldError, InvalidValueError, UnknownNameError
from farfield.graph._archive import read_program
from farfield.graph._export import export_model, exported_modules, lower_exported
from farfield.graph._faithful import spread_rows
from farfield.graph._fixed_sizes import with_fixed_sizes
from farfield.graph._fold import fold
from farfield.graph._lower import Lowering
from farfield.graph._node import InputKind
from farfield.graph._opaque import walk_modules
from farfield.graph._prepare import prepared, quiet, unwrapped
from farfield.graph._program import CaptureMethod, Program
from farfield.graph._runnable import in_memory
from farfield.graph._simplify import simplify
from farfield.graph._size import SymbolicSize
from farfield.graph._state import ModelState
from farfield.graph._symbolic import trace_model
from farfield.graph._unknown import OpaqueNodeError
from farfield.graph._wrong_target import wrong_path
from farfield.graph.onnx import OnnxModule, is_onnx, open_onnx, open_sizes, unknown_reason
from farfield.graph.recognition import recognize

__all__ = ["CaptureError", "capture", "open_model"]

_ORDER: tuple[CaptureMethod, ...] = ("export", "fx", "modules")


class CaptureError(FarfieldError, RuntimeError):
    """The model could not be captured because it doesn't run on the example, or the file can't be read."""


def capture(
    model: nn.Module | ExportedProgram | str | Path,
    example_inputs: Any = (),
    *,
    dynamic_batch: bool = True,
    prefer: CaptureMethod = "export",
    kinds: Mapping[str, InputKind] | None = None,
    open_weights: bool = False,
) -> Program:
    """Capture what a model computes as a :class:`Program`.

    The model is captured as it serves: in eval mode, without gradients, without a key-value cache. It's left
    exactly as it was. Parameters are shared, never copied. Afterwards constants are folded, each step gets
    its plainest name, and norms and activations written by hand are recognized
    (``attributes["recognized"]``); all of that is exact in real arithmetic.

    Parameters
    ----------
    model
        A module, an exported program, or the path of a ``.pt2`` or ``.onnx`` file (which need no example). A file is
        read without running anything in it; what can't be read so is refused.
    example_inputs
        A tensor, a tuple of positional arguments, or a dictionary of named ones. Only shapes and types
        matter, unless the model's Python code branches on values: then export fails, and a program is
        returned that says so.
    dynamic_batch
        Keep the first axis of every input open where the model allows it; such axes are symbols in shapes. If not,
        open axes of a program or a file get the example's sizes, and one row where there is no example.
    prefer
        The method tried first. Whatever fails, the next is tried: ``torch.export``, ``torch.fx``, and a
        program with one unknown node. ``program.capture`` says which it was, ``program.unseen`` what was
        lost.
    kinds
        Input name → what is known of its values: ``"bounded"``, for inputs that stay in a bounded set (pixels,
        angles); ``"boolean"`` for masks of zeros and ones; ``"integer"`` for ids; ``"real"`` for any number.
    open_weights
        Leave the values of parameters and buffers open: their nodes are constants without a tensor. What is then
        proved holds for whatever finite values they have, and nothing in them is read. Such a program can't be run.

    Returns
    -------
    Program
        Never partial: an operator that nobody registered is an ``"unknown"`` node with its inputs.

    Raises
    ------
    CaptureError
        If the model itself fails on the example.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> program = capture(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)), torch.zeros(2, 4))
    >>> [node.op for node in program.nodes if node.role == "operation"]
    ['linear', 'layer_norm']
    """
    wanted: Mapping[str, InputKind] = dict(kinds or {})
    for kind in wanted.values():
        if kind not in get_args(InputKind):
            raise UnknownNameError("kind of input", kind, get_args(InputKind))
    if isinstance(model, str | Path) and (said := wrong_path(model)) is not None:
        raise CaptureError(said)
    if is_onnx(model):
        model, example_inputs = open_model(model, example_inputs, rows=2 if dynamic_batch else 1)
    elif isinstance(model, str | Path):
        model = _load(Path(model))
    plain: nn.Module | ExportedProgram = in_memory(unwrapped(model))
    model, example_inputs = plain, in_memory(example_inputs)
    if isinstance(model, ExportedProgram):
        lowering, outputs = lower_exported(model, wanted)
        program = _program(lowering, outputs, "export", exported_modules(model), ())
        if not dynamic_batch:
            given = [leaf for leaf in tree_leaves(example_inputs) if isinstance(leaf, Tensor)]
            program = with_fixed_sizes(program, given)
    else:
        args, kwargs = _arguments(_distinct(example_inputs))
        with prepared(model) as state:
            tracer = _Tracer(model, state, wanted, prefer)
            program = tracer.trace(args, kwargs, dynamic_batch=dynamic_batch)
            if dynamic_batch and not _takes_rows(program, (args, kwargs)):
                program = tracer.with_open_axis(args, kwargs, program)
            program = replace(program, unseen=(*program.unseen, *tracer.kept()))
    if not program.outputs:
        raise CaptureError("The model returns no tensor on this example, so there is nothing to capture.")
    unknown = sorted(set(wanted) - {spec.name for spec in program.inputs})
    if unknown:
        raise InvalidValueError(
            f"kinds names the inputs {unknown}, which this model doesn't have; it has "
            f"{[spec.name for spec in program.inputs]}."
        )
    raw = program if isinstance(model, nn.Module) and not open_weights else None
    if open_weights:
        program = _opened(program, model)
    program = replace(recognize(simplify(fold(program))), raw=raw)
    return _with_notes(program, model, example_inputs) if isinstance(model, OnnxModule) else program


class _Tracer:
    """Traces one model, by one method after another, each from the state that the model was given in."""

    def __init__(
        self, model: nn.Module, state: ModelState, kinds: Mapping[str, InputKind], prefer: CaptureMethod
    ) -> None:
        self.model, self.state, self.kinds, self.prefer = model, state, kinds, prefer

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, dynamic_batch: bool) -> Program:
        """The program, by the preferred method or the first that does not fail."""
        model = self.model
        modules = {path: type(module).__name__ for path, module in model.named_modules()}
        lost: list[str] = []
        script = isinstance(model, torch.jit.ScriptModule)
        if script:
            lost.append("Nobody can look into TorchScript: pass the nn.Module that was traced or scripted.")
        for method in (self.prefer, *(m for m in _ORDER if m != self.prefer)):
            if method == "modules" or script:
                break
            try:
                if method == "export":
                    exported = export_model(model, args, kwargs, dynamic_batch=dynamic_batch)
                    program = _program(*lower_exported(exported, self.kinds), method, modules, lost)
                    return replace(program, guards=tuple(getattr(exported, "_guards_code", ()) or ()))
                fixed = "torch.fx fixes every size to the example's."
                nodes = trace_model(model, args, kwargs, self.kinds)
                return _program(*nodes, method, modules, [*lost, fixed])
            except Exception as error:  # tracers raise whatever the model's code runs into
                self.state.settle(traced=True)
                self._check_that_it_runs(args, kwargs)
                self.state.settle()
                lost.append(f"torch.{method} failed: {_first_line(error)}")
            finally:
                self.state.settle(traced=True)
        self._check_that_it_runs(args, kwargs)
        opaque = walk_modules(model, args, kwargs, self.kinds)
        self.state.settle()
        return replace(opaque, unseen=(*lost, *opaque.unseen))

    def with_open_axis(self, args: tuple[Any, ...], kwargs: dict[str, Any], narrow: Program) -> Program:
        """Captured again from the row twice, if that program is the same on one row; else with every size fixed."""

        def twice(leaf: Any) -> Any:
            single = isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == 1
            return torch.cat([leaf, leaf]) if single else leaf

        starts = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        try:
            wide = self.trace(tree_map(twice, args), tree_map(twice, kwargs), dynamic_batch=True)
            values = [p.evaluate(*starts, dtype=None, keep=p.outputs) for p in (narrow, wide)]
            pairs = [(values[0][a], values[1][b]) for a, b in zip(narrow.outputs, wide.outputs, strict=True)]
            if all(torch.allclose(a, b, rtol=1e-3, atol=1e-6, equal_nan=True) for a, b in pairs):
                return wide
        except Exception:  # the model takes one row only, or another way for it
            pass
        return self.trace(args, kwargs, dynamic_batch=False)

    def kept(self) -> list[str]:
        """What a call leaves behind for the next, in words; export says so of buffers itself."""
        stored = {name for name, _ in self.model.named_buffers(remove_duplicate=False)}
        names = [repr(name) for name in self.state.changed if name not in stored]
        if not names:
            return []
        few = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        return [
            f"Each call changes state that the model keeps ({few}); the program is one call from its present state."
        ]

    def _check_that_it_runs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell a model that fails on its example from one that only the tracers can't follow."""
        try:
            self.model(*args, **kwargs)
        except Exception as error:
            given = (*args, *kwargs.values())
            shapes = [
                str(tuple(a.shape)) if isinstance(a, Tensor) else repr(a)[:60].partition("\n")[0]
                for a in given
            ]
            raise CaptureError(
                f"{self.model._get_name()} itself fails on the example inputs ({', '.join(shapes)}): "
                f"{_first_line(error)}. {_advice(self.model, args)}"
            ) from error


def _opened(program: Program, model: nn.Module | ExportedProgram) -> Program:
    """Without the values of parameters and buffers; what the model's code writes as numbers stays."""
    stored = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    if isinstance(model, nn.Module):
        stored |= {name for name, _ in model.named_parameters(remove_duplicate=False)}
        stored |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    left = {
        name: value
        for name, value in program.constants.items()
        if program.constant_names.get(name) not in stored
    }
    return replace(program, constants=left)


def _takes_rows(program: Program, example: Any) -> bool:
    """Whether a program captured from a single row runs on two: torch may open an axis and write a 1 further on."""
    starts = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
    single = [
        bool(spec.shape) and isinstance(spec.shape[0], SymbolicSize) and start.shape[0] == 1
        for spec, start in zip(program.inputs, starts, strict=False)
    ]
    if program.capture == "modules" or not any(single) or len(starts) != len(program.inputs):
        return True
    rows = spread_rows(program, starts, 2)
    try:
        program.evaluate(*(rows or ()), dtype=None, keep=program.outputs)
    except OpaqueNodeError:
        return True
    except Exception:
        return False
    return True


def _program(
    lowering: Lowering,
    outputs: list[str],
    method: CaptureMethod,
    modules: Mapping[str, str],
    lost: list[str] | tuple[str, ...],
) -> Program:
    return Program(
        nodes=tuple(lowering.nodes),
        inputs=tuple(lowering.inputs),
        outputs=tuple(outputs),
        constants=lowering.constants,
        constant_names=lowering.constant_names,
        capture=method,
        unseen=(*lost, *lowering.unseen),
        modules=modules,
    )


def _advice(model: nn.Module, args: tuple[Any, ...]) -> str:
    """What to pass instead."""
    named = inspect.signature(model.forward).parameters.values()
    keyword = [p.name for p in named if p.kind is p.KEYWORD_ONLY]
    if args and keyword and not any(p.kind is p.POSITIONAL_OR_KEYWORD for p in named):
        pairs = ", ".join(f"{name!r}: …" for name in keyword)
        return (
            f"Its forward takes inputs by keyword only: from Python, pass them as a dictionary, {{{pairs}}}."
        )
    return "Pass inputs of the shapes and types its forward takes."


def open_model(model: Any, example_inputs: Any = (), *, rows: int = 2) -> tuple[Any, Any]:
    """The module of an ``.onnx`` file and inputs for it; anything that is no such path as it is, in main memory.

    Parameters
    ----------
    model
        What a caller passed as the model.
    example_inputs
        What was passed as its inputs; where there are none, zeros of the shapes that the file declares.
    rows
        Size of the batch, where the file leaves it open.

    Raises
    ------
    CaptureError
        If the file can't be read safely.
    """
    if isinstance(model, str | Path) and (said := wrong_path(model)) is not None:
        raise CaptureError(said)
    try:
        if is_onnx(model):
            return open_onnx(model, example_inputs, rows=rows)
        return in_memory(model), in_memory(example_inputs)
    except UnsafeFileError as error:
        raise CaptureError(str(error)) from error


def _with_notes(program: Program, module: OnnxModule, example_inputs: Any) -> Program:
    """The program of an ONNX file, with what the file left open and which nodes have no translation."""
    strange = [
        f"{node.module_path or node.name}: {reason}."
        for node in program.nodes
        if (reason := unknown_reason(node)) is not None
    ]
    said = (*open_sizes(module, example_inputs), *dict.fromkeys(strange))
    return replace(program, unseen=(*program.unseen, *said))


def _load(path: Path) -> ExportedProgram:
    try:
        with quiet():
            return read_program(path)
    except UnsafeFileError as error:
        raise CaptureError(
            f"{error} Write a program with torch.export.save(exported, path); checkpoints hold weights only."
        ) from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0].strip()[:300] if text else '(no message)'}"


def _distinct(inputs: Any) -> Any:
    """The same inputs, no tensor object in two places: torch.export would take two inputs for one, x − y for 0."""
    seen: set[int] = set()

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) in seen:
            return leaf.clone()
        seen.add(id(leaf))
        return leaf

    return tree_map(own, inputs)


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, tuple | list):
        return tuple(example_inputs), {}
    raise InvalidValueError(
        "example_inputs is a tensor, a tuple of positional arguments or a dictionary of named ones, not "
        f"{type(example_inputs).__name__}."
    )
