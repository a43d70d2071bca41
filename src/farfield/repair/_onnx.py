"""Protections as standard ONNX operators, put into the file that is shipped."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from farfield.calibration import Call, run
from farfield.errors import InvalidValueError
from farfield.graph import OnnxModule
from farfield.graph.onnx import Addition, Splice, write_spliced
from farfield.nn import FeatureClamp, NormCap, RangeHead
from farfield.repair._insert import Insertion

__all__ = ["save_onnx"]


def save_onnx(
    model: nn.Module, insertions: Sequence[Insertion], example: Call, path: str | os.PathLike[str]
) -> None:
    """Write the ONNX file that a model was read from, with the protections in it; the rest byte for byte as it was.

    Raises
    ------
    InvalidValueError
        If the model was not read from an ONNX file, that file has changed since, or a protection has no such form.
    """
    if not isinstance(model, OnnxModule):
        raise InvalidValueError(
            "Only a model that was read from an .onnx file is written to one. Write .pt2, or export it with "
            "torch.onnx.export."
        )
    model.check_source()
    dtypes = _dtypes(model, insertions, example)
    splices: list[Splice] = []
    names: dict[str, str] = {}
    for number, insertion in enumerate(insertions, _first_free(model)):
        kind, value = _place(model, insertion)
        source = names.get(value, value)
        made = _Nodes(f"farfield_{number}", dtypes[len(splices)], model.opset)
        if kind != "input" and value not in names:
            source = f"{value}__farfield_{number}"
        result = made.protect(insertion.module, source)
        names[value] = result
        splices.append(Splice(value, kind, tuple(made.nodes), made.tensors, source, result))
    write_spliced(model.path, path, _final_names(splices))


def _first_free(model: OnnxModule) -> int:
    """The first number from which no name in the file is one of ours; a repaired file may be repaired again."""
    found = [int(n) for name in model.names_taken for n in re.findall(r"farfield_(\d{1,9})", name)]
    return max(found, default=-1) + 1


def _final_names(splices: list[Splice]) -> list[Splice]:
    """The last protection of a value gives it its own name, so that whoever reads it finds it."""
    last = {splice.value: k for k, splice in enumerate(splices) if splice.kind != "input"}
    for value, k in last.items():
        old = splices[k]
        (*before, end) = old.nodes
        renamed = Addition(end.operator, end.inputs, value, end.attributes, name=end.output)
        splices[k] = Splice(value, old.kind, (*before, renamed), old.tensors, old.source, value)
    return splices


def _place(model: OnnxModule, insertion: Insertion) -> tuple[str, str]:
    """How a protection is put in, and the name of the value it goes on."""
    if insertion.place == "input":
        index = int(insertion.at) if insertion.at.isdigit() else model.argument_names.index(insertion.at)
        return "input", model.input_specs[index].name
    if insertion.place == "hidden":
        return "behind", model.result_of(insertion.at)
    return "output", model.output_names[int(insertion.at)]


def _dtypes(model: OnnxModule, insertions: Sequence[Insertion], example: Call) -> list[torch.dtype]:
    """The type of the value at every protection, from one call of the model."""
    seen: dict[str, torch.dtype] = {}
    handles = []
    for insertion in insertions:
        if insertion.place == "hidden":

            def note(module: nn.Module, args: Any, output: Any, at: str = insertion.at) -> None:
                seen[at] = (output[0] if isinstance(output, tuple) else output).dtype

            handles.append(model.get_submodule(insertion.at).register_forward_hook(note))
    try:
        run(model, example)
    finally:
        for handle in handles:
            handle.remove()
    own = [next(iter(i.module.buffers())).dtype for i in insertions]
    return [seen[i.at] if i.place == "hidden" else kind for i, kind in zip(insertions, own, strict=True)]


class _Nodes:
    """Collects the nodes and constants of one protection."""

    def __init__(self, prefix: str, dtype: torch.dtype, opset: int) -> None:
        self.prefix, self.dtype, self.opset = prefix, dtype, opset
        self.nodes: list[Addition] = []
        self.tensors: dict[str, Tensor] = {}

    def protect(self, module: nn.Module, x: str) -> str:
        """The protection of the value ``x``; the name of what it gives."""
        if isinstance(module, FeatureClamp):
            return self._features(module, x)
        if isinstance(module, NormCap):
            return self._cap(module, x)
        if isinstance(module, RangeHead):
            return self._range(module, x)
        raise InvalidValueError(
            f"A {type(module).__name__} can't be written into an ONNX file: it was trained with the "
            "weights. Save the repaired model as .pt2."
        )

    def _add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{self.prefix}_{len(self.nodes)}_{operator}"
        self.nodes.append(Addition(operator, inputs, name, attributes))
        return name

    def _constant(self, value: Any, dtype: torch.dtype | None = None) -> str:
        name = f"{self.prefix}_constant_{len(self.tensors)}"
        self.tensors[name] = torch.as_tensor(value).detach().clone().to(dtype or self.dtype)
        return name

    def _without_nan(self, x: str, instead: Any) -> str:
        return self._add("Where", self._add("IsNaN", x), self._constant(instead), x)

    def _clamp(self, x: str, low: Any, high: Any) -> str:
        return self._add("Min", self._add("Max", x, self._constant(low)), self._constant(high))

    def _over(self, operator: str, x: str, axes: Sequence[int]) -> str:
        """A reduction that keeps its axes; from operator set 18 on these are an input."""
        if self.opset < 18:
            return self._add(operator, x, axes=list(axes), keepdims=1)
        return self._add(operator, x, self._constant(list(axes), torch.int64), keepdims=1)

    def _features(self, module: FeatureClamp, x: str) -> str:
        low, high, center = (t.to(self.dtype) for t in (module.low, module.high, module.center))
        x = self._without_nan(x, center)
        kept = self._clamp(x, low, high)
        if module.soft:
            width = self._constant(0.1 * (high - low) + torch.finfo(self.dtype).tiny)
            bend = self._add("Tanh", self._add("Div", self._add("Sub", x, kept), width))
            kept = self._add("Add", kept, self._add("Mul", bend, width))
        if math.isinf(module.end):
            return kept
        above = self._return(module, x, center, high - center)
        below = self._return(module, self._add("Neg", x), -center, center - low)
        back = self._add("Add", above, below)
        away = self._add("Sub", self._constant(center), kept)
        return self._add("Add", kept, self._add("Mul", back, away))

    def _return(self, module: FeatureClamp, x: str, center: Tensor, reach: Tensor) -> str:
        start, length = module.way_back(center, reach)
        raw = self._add("Div", self._add("Sub", x, self._constant(start)), self._constant(length))
        share = self._clamp(raw, 0.0, 1.0)
        if not module.soft:
            return share
        rest = self._add("Sub", self._constant(3.0), self._add("Mul", self._constant(2.0), share))
        return self._add("Mul", self._add("Mul", share, share), rest)

    def _cap(self, module: NormCap, z: str) -> str:
        center, weight, radius = (t.to(self.dtype) for t in (module.center, module.weight, module.radius))
        real = torch.finfo(self.dtype)
        z = self._without_nan(z, center)
        v = self._add("Mul", self._add("Sub", z, self._constant(center)), self._constant(weight))
        v = self._clamp(v, -real.max, real.max)
        scale = self._add(
            "Max", self._over("ReduceMax", self._add("Abs", v), module.axes), self._constant(real.tiny)
        )
        share = self._add("Div", v, scale)
        length = self._add("Max", self._over("ReduceL2", share, module.axes), self._constant(real.tiny))
        unit, size = self._add("Div", share, length), self._add("Mul", length, scale)
        inside = self._add("Not", self._add("Greater", size, self._constant(radius)))
        target = self._constant(radius)
        if module.soft:
            ratio = self._add("Div", size, self._constant(radius))
            bend = self._add(
                "Tanh", self._add("Mul", self._add("Sub", ratio, self._constant(1.0)), self._constant(10.0))
            )
            target = self._add(
                "Mul",
                self._add("Add", self._add("Mul", bend, self._constant(0.1)), self._constant(1.0)),
                target,
            )
        capped = self._add("Div", self._add("Mul", unit, target), self._constant(weight))
        out = self._add("Where", inside, z, self._add("Add", capped, self._constant(center)))
        if not module.soft:
            return out
        reach = 1.1 * radius / weight * (1.0 + 1e-6)
        return self._clamp(out, center - reach, center + reach)

    def _range(self, module: RangeHead, x: str) -> str:
        low, high = (torch.as_tensor(t).to(self.dtype) for t in (module.low, module.high))
        if module.knee == 0.0:
            return self._clamp(self._without_nan(x, (low + high) / 2), low, high)
        delta = module.knee * (high - low)
        kept = self._clamp(x, low + delta, torch.maximum(high - delta, low + delta))
        width = self._constant(delta)
        bend = self._add("Tanh", self._add("Div", self._add("Sub", x, kept), width))
        return self._clamp(self._add("Add", kept, self._add("Mul", bend, width)), low, high)
