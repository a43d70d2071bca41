"""An ONNX graph as a torch module: one submodule for every node, the file's tensors under their names."""

from __future__ import annotations

import functools
import inspect
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from farfield.errors import InvalidValueError
from farfield.graph.onnx._file import InnerGraph, OnnxFile, OnnxInput, OnnxStep, file_stamp, inferred_shapes
from farfield.graph.onnx._table import OnnxFunction
from farfield.graph.onnx._unknown import unknown_value
from farfield.graph.onnx._values import Arguments, IntVector, UnsupportedOnnxError, Value, as_tensor
from farfield.graph.onnx.operators import find_function
from farfield.graph.onnx.operators.create import TYPES

__all__ = ["OnnxModule", "OnnxNode", "translated"]

FEW = 4096
"""Constants of at most this many entries are also known as numbers: they can be sizes, axes or limits."""

MOST_FOLDED = 1 << 24
"""Entries of a constant that is computed when the file is read."""


class Unknown(tuple[Tensor, ...]):
    """Results of a node that has no translation."""


class OnnxNode(nn.Module):
    """One node of an ONNX graph: its operator's function, its attributes and the inputs that the file fixes.

    Parameters
    ----------
    step
        What the file says of it.
    function
        From the table; ``None`` if the operator has no translation.
    opset
        Version of its operator set.
    literals
        For every input its entries, where the file fixes them and they are few.
    results
        For every output its type and sizes as far as they are known: what is used if there is no translation.
    why
        Why there is none, where that is known.
    """

    def __init__(
        self,
        step: OnnxStep,
        function: OnnxFunction | None,
        opset: int,
        literals: Sequence[np.ndarray | None],
        results: Sequence[OnnxInput | None],
        why: str = "",
    ) -> None:
        super().__init__()
        self.why = why
        self.step, self.function, self.opset = step, function, opset
        self.literals, self.results = tuple(literals), tuple(results)

    def forward(
        self, *inputs: Value | None, symbols: Mapping[str, Any] | None = None, vague: bool = False
    ) -> Any:
        """The node's results: one value, or a tuple of them; unknown where the size of an input is (``vague``)."""
        count = max((k + 1 for k, name in enumerate(self.step.outputs) if name), default=1)
        reason = f"the ONNX operator {self.step.title} has no translation" + (
            f": {self.why}" if self.why else ""
        )
        if vague:
            reason = f"the ONNX operator {self.step.title} takes a value of unknown size"
        elif self.function is not None:
            call = Arguments(inputs, self.literals, self.step.attributes, self.opset, count)
            try:
                return self.function(call)
            except UnsupportedOnnxError as error:
                reason = f"the ONNX operator {self.step.title} has no translation: {error}"
        tensors = [as_tensor(value) for value in inputs if value is not None]
        return Unknown(self._unknown(k, tensors, symbols or {}, reason) for k in range(count))

    def sized(self, output: int, symbols: Mapping[str, Any]) -> bool:
        """Whether the sizes of a result are known without computing it."""
        found = self.results[output] if output < len(self.results) else None
        return (
            found is not None
            and found.ranked
            and all(isinstance(s, int) or s in symbols for s in found.sizes)
        )

    def _unknown(
        self, output: int, tensors: Sequence[Tensor], symbols: Mapping[str, Any], reason: str
    ) -> Tensor:
        found = self.results[output] if output < len(self.results) else None
        sizes: list[Any] = []
        dtype = torch.float32
        if found is not None:
            dtype = TYPES.get(found.code, torch.float32)
            sizes = [s if isinstance(s, int) else symbols.get(s or "", 1) for s in found.sizes]
        return unknown_value(self.step.title, tensors, sizes, dtype, output, reason)

    def extra_repr(self) -> str:
        """What print shows."""
        return self.step.title


@functools.cache
def _node_class(operator: str) -> type[OnnxNode]:
    """A class named as the operator, which is what reports show; only for names in the table."""
    return type(operator, (OnnxNode,), {"__module__": __name__})


class OnnxModule(nn.Module):
    """What an ONNX file computes, as a module. Made by :func:`farfield.graph.read_onnx`; each file gets a subclass
    whose ``forward`` takes the file's own inputs by name.

    One tensor is returned as it is, several in a dictionary by the file's names.
    """

    def __init__(self, file: OnnxFile) -> None:
        super().__init__()
        self.path, self._stamp, self.opset = str(file.path), file.stamp, file.opsets.get("", 1)
        self.input_specs, self.output_names = file.inputs, tuple(v.name for v in file.outputs)
        self.argument_names = argument_names(file.inputs)
        kinds = (TYPES.get(spec.code) for spec in file.inputs)
        self.input_type = next((kind for kind in kinds if kind and kind.is_floating_point), None)
        made = (name for step in file.steps for name in (step.label, *step.outputs))
        self.names_taken = frozenset((*(v.name for v in file.inputs), *file.tensors, *made))
        self._stored: dict[str, str] = {}
        self._plan: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
        self._literals: dict[str, IntVector] = {}
        _ModuleBuilder(self, file).build()

    def _get_name(self) -> str:
        """What torch calls a module by: here the file."""
        return Path(self.path).name

    def check_source(self) -> None:
        """Raise if the file is not the one that was read any more."""
        if file_stamp(self.path) != self._stamp:
            raise InvalidValueError(f"{self.path!r} has changed since it was read. Read and repair it again.")

    def result_of(self, child: str) -> str:
        """Name of the value that the node of a submodule gives."""
        return next(outputs[0] for name, _, outputs in self._plan if name == child)

    def named_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """ONNX input name → what was passed for it."""
        bound = inspect.signature(self.forward).bind(*args, **kwargs).arguments
        return {
            spec.name: bound[arg] for spec, arg in zip(self.input_specs, self.argument_names, strict=True)
        }

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph."""
        values: dict[str, Value] = dict(self.named_inputs(args, kwargs))
        symbols: dict[str, Any] = {}
        for spec in self.input_specs:
            for symbol, size in zip(spec.sizes, values[spec.name].shape, strict=False):  # type: ignore[union-attr]
                if isinstance(symbol, str):
                    symbols.setdefault(symbol, size)
        for name, stored in self._stored.items():
            values[name] = getattr(self, stored)
        values.update(self._literals)
        vague: set[str] = set()
        for child, inputs, outputs in self._plan:
            node = self.get_submodule(child)
            given = (values[name] if name else None for name in inputs)
            made = node(*given, symbols=symbols, vague=not vague.isdisjoint(inputs))
            if isinstance(made, Unknown) and isinstance(node, OnnxNode):
                vague.update(name for k, name in enumerate(outputs) if name and not node.sized(k, symbols))
            made = made if isinstance(made, tuple) else (made,)
            values.update({name: value for name, value in zip(outputs, made, strict=False) if name})
        results = {name: as_tensor(values[name]) for name in self.output_names}
        return next(iter(results.values())) if len(results) == 1 else results


class _ModuleBuilder:
    """Fills a module from a file: constants are computed now, everything else becomes a submodule."""

    def __init__(self, module: OnnxModule, file: OnnxFile) -> None:
        self.module, self.file = module, file
        self.known: dict[str, Value] = {}
        self.inferred: dict[str, OnnxInput] | None = None

    def build(self) -> None:
        """Store tensors, fold constants, add a submodule for every other node that an output needs."""
        for name, tensor in self.file.tensors.items():
            if tensor.numel() <= FEW:
                self.known[name] = tensor
        needed = _needed(self.file)
        for name, tensor in self.file.tensors.items():
            if name in needed:
                self._store(name, tensor, parameter=True)
        for step in self.file.steps:
            if any(name in needed for name in step.outputs):
                self._step(step)

    def _step(self, step: OnnxStep) -> None:
        function, why = find_function(step.domain, step.operator), ""
        if any(isinstance(value, InnerGraph) for value in step.attributes.values()):
            function, why = None, "it holds a graph of its own"
        opset = self.file.opsets.get(step.domain, 1)
        literals = [_entries(self.known.get(name)) for name in step.inputs]
        step = _with_numbers(step)
        fixed = all(not name or name in self.known for name in step.inputs)
        if function is not None and fixed and self._fold(step, function, opset, literals):
            return
        if any(name and name in self._texts() for name in step.inputs):
            function, why = None, "it reads texts"
        inputs = tuple(name if name not in self._texts() else "" for name in step.inputs)
        results = [self._result(name) for name in step.outputs]
        child = _free(self.module, step.label)
        kind = OnnxNode if function is None else _node_class(step.operator)
        self.module.add_module(child, kind(step, function, opset, literals, results, why))
        self.module._plan.append((child, inputs, step.outputs))

    def _texts(self) -> set[str]:
        """Initializers that hold texts, which no tensor can."""
        if not hasattr(self, "_text_names"):
            made = {name for step in self.file.steps for name in step.outputs}
            used = {name for step in self.file.steps for name in step.inputs if name}
            given = {spec.name for spec in self.file.inputs}
            self._text_names = used - made - given - set(self.file.tensors)
        return self._text_names

    def _fold(self, step: OnnxStep, function: OnnxFunction, opset: int, literals: Sequence[Any]) -> bool:
        values = [self.known[name] if name else None for name in step.inputs]
        count = max((k + 1 for k, name in enumerate(step.outputs) if name), default=1)
        call = Arguments(values, literals, step.attributes, opset, count)
        try:
            with torch.no_grad():
                # Sizes first: what a file calls a constant may be larger than any memory.
                with FakeTensorMode(allow_non_fake_inputs=True):
                    shapes = function(call)
                if not _affordable(shapes):
                    return False
                made = function(call)
        except Exception:  # no translation, or attributes that make no sense: the node says so when it is run
            return False
        made = made if isinstance(made, tuple) else (made,)
        for name, value in zip(step.outputs, made, strict=False):
            if not name:
                continue
            if isinstance(value, IntVector):
                self.known[name] = value
                self.module._literals[name] = value
            else:
                value = value.detach().clone()
                if value.numel() <= FEW:
                    self.known[name] = value
                self._store(name, value, parameter=False)
        return True

    def _result(self, name: str) -> OnnxInput | None:
        if self.inferred is None:
            self.inferred = inferred_shapes(self.file)
        return self.inferred.get(name)

    def _store(self, name: str, tensor: Tensor, *, parameter: bool) -> None:
        stored = _free(self.module, name)
        if parameter and tensor.is_floating_point() and tensor.dtype.itemsize > 1:
            self.module.register_parameter(stored, nn.Parameter(tensor))
        else:
            self.module.register_buffer(stored, tensor)
        self.module._stored[name] = stored


def translated(file: OnnxFile) -> OnnxModule:
    """The module of a file, of a class of its own whose ``forward`` names the file's inputs."""
    names = argument_names(file.inputs)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return OnnxModule.forward(self, *args, **kwargs)

    parameters = [inspect.Parameter(name, kind) for name in ("self", *names)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made: type[OnnxModule] = type("OnnxModule", (OnnxModule,), {"forward": forward, "__module__": __name__})
    return made(file).eval()


def argument_names(inputs: Iterable[OnnxInput]) -> tuple[str, ...]:
    """The inputs' names as Python has them."""
    names: list[str] = []
    for spec in inputs:
        name = re.sub(r"\W", "_", spec.name, flags=re.ASCII)
        name = (
            f"input_{name}" if not name.isidentifier() or keyword.iskeyword(name) or name == "self" else name
        )
        while name in names:
            name += "_"
        names.append(name)
    return tuple(names)


def _free(module: nn.Module, name: str) -> str:
    """A name for a member of the module: no dots, and nothing that it has already."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name)[:200].strip("_") or "value"
    plain = f"n{plain}" if plain[0].isdigit() else plain
    unique, count = plain, 0
    while hasattr(module, unique):
        count += 1
        unique = f"{plain}_{count}"
    return unique


def _entries(value: Value | None) -> np.ndarray | None:
    if not isinstance(value, Tensor) or value.dtype.itemsize < 1 or value.is_complex():
        return None
    if value.dtype == torch.bfloat16 or (value.is_floating_point() and value.dtype.itemsize == 1):
        value = value.to(torch.float32)
    return value.detach().numpy().copy()


def _affordable(made: Any) -> bool:
    values = made if isinstance(made, tuple) else (made,)
    return sum(value.numel() for value in values if isinstance(value, Tensor)) <= MOST_FOLDED


def _with_numbers(step: OnnxStep) -> OnnxStep:
    """The fill value of ``ConstantOfShape`` as a number too: inside ``torch.export`` a tensor can't be read."""
    value = step.attributes.get("value")
    if step.operator != "ConstantOfShape" or not isinstance(value, Tensor) or value.numel() != 1:
        return step
    attributes = {**step.attributes, "value_number": value.reshape(-1)[0].item()}
    return OnnxStep(step.label, step.operator, step.domain, step.inputs, step.outputs, attributes)


def _needed(file: OnnxFile) -> set[str]:
    """Names of the values that the outputs depend on."""
    found = {v.name for v in file.outputs}
    for step in reversed(file.steps):
        if any(name in found for name in step.outputs):
            found.update(name for name in step.inputs if name)
    return found
