"""What a worker does for a census: a verdict that holds for whatever weights, and random ones for what grows."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from farfield._target import build, example_input
from farfield._weights import CheckpointError
from farfield.audit._hollow import build_hollow, is_hollow
from farfield.audit._structure import kinds_of_sizes, parse_config, parse_header
from farfield.audit._unsettle import unsettle
from farfield.audit._worker import message_of, short
from farfield.errors import InvalidValueError
from farfield.graph import Program, capture
from farfield.growth import GrowthReport, Status, analyze
from farfield.growth._analysis import Analysis, analyze_growth
from farfield.growth._paths import bounding_cut, escape_paths

__all__ = ["answer", "structural_verdict"]

LARGEST_DRAWN = 200_000_000
"""Parameters of a model for which random weights are drawn, to see whether it grows."""
_FROM_CONFIG = "farfield.atlas._from_config"
"""Where configurations of libraries are known; by name, because that room lies above this one."""


@dataclass(frozen=True, slots=True)
class ModelAndInputs:
    """How a model is made, and inputs for it."""

    make: Callable[[], nn.Module]
    inputs: Callable[[nn.Module], Any]


def answer(
    config: str | None,
    header: str | None,
    builder: str | None,
    arguments: str | None,
    inputs: tuple[str, ...],
    *,
    tell: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """The verdict on one architecture; what went wrong is part of it."""
    begun = time.monotonic()
    row: dict[str, Any] = {}
    stage = "load"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = source_of(config, builder, arguments, tuple(inputs))
            model = build_hollow(source.make)
            if header is not None:
                check_header(model, parse_header(header))
            example = source.inputs(model)
            stage = "audit"
            tell({"stage": stage})
            row = structural_verdict(model, example, source.make)
    except (Exception, SystemExit) as error:
        row |= {"stage": stage, "error": type(error).__name__, "message": message_of(error)}
    return {**row, "seconds": time.monotonic() - begun}


def source_of(
    config: str | None, builder: str | None, arguments: str | None, inputs: tuple[str, ...]
) -> ModelAndInputs:
    """From a configuration of a library, or from a builder with its arguments."""
    if builder is not None:
        if not inputs:
            raise InvalidValueError("A built model needs the shapes of its inputs, such as 1x8.")
        settings = parse_config(arguments or config or "{}")
        return ModelAndInputs(
            lambda: build(builder, settings),
            lambda _: tuple(_two_rows(example_input(spec)) for spec in inputs),
        )
    if config is None:
        raise InvalidValueError(
            "A model without a builder needs its config.json, beside the file or in the registry."
        )
    found = parse_config(config)
    room = importlib.import_module(_FROM_CONFIG)
    return ModelAndInputs(lambda: room.model_of(found), lambda model: room.inputs_of(model))


def _two_rows(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor]) if tensor.ndim and tensor.shape[0] == 1 else tensor


def check_header(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a file that does not belong to the model its configuration describes.

    Tensors that the model shares may be in the file once. A prefix that all names carry, or lack, is allowed for.
    """
    own = {name: tuple(t.shape) for name, t in model.state_dict(keep_vars=True).items()}
    prefix = str(getattr(model, "base_model_prefix", "") or "")
    forms = [dict(shapes)]
    if prefix:
        forms.append({f"{prefix}.{name}": shape for name, shape in shapes.items()})
        forms.append({name.removeprefix(f"{prefix}."): shape for name, shape in shapes.items()})
    given = max(forms, key=lambda form: len(form.keys() & own.keys()))
    strange = sorted(given.keys() - own.keys())
    if strange:
        raise CheckpointError(
            f"{len(strange)} tensors of the file are not in the {type(model).__name__} that the configuration "
            f"describes, such as {strange[0]!r}."
        )
    at = {name: id(t) for name, t in model.state_dict(keep_vars=True).items()}
    held = {at[name] for name in given}
    missing = sorted(name for name in own if at[name] not in held and name in dict(model.named_parameters()))
    if missing:
        raise CheckpointError(f"The file lacks {len(missing)} tensors of the model, such as {missing[0]!r}.")
    for name, shape in given.items():
        # Sizes beyond 0 and 1 are not in an architecture's key, so a verdict can't depend on them.
        if kinds_of_sizes(own[name]) != kinds_of_sizes(shape):
            raise CheckpointError(
                f"{name!r} has the shape {list(shape)} in the file, and {list(own[name])} by the configuration."
            )


def structural_verdict(model: nn.Module, example: Any, make: Callable[[], nn.Module]) -> dict[str, Any]:
    """BOUNDED for whatever finite weights; UNBOUNDED with random ones; else UNKNOWN with the path or the reason.

    Parameters
    ----------
    model
        From :func:`build_hollow`.
    example
        Its inputs.
    make
        Makes the model with weights.
    """
    program = capture(model, example, open_weights=True)
    count = sum(p.numel() for p in model.parameters())
    row: dict[str, Any] = {"operations": sum(n.role == "operation" for n in program.nodes)}
    if program.capture == "modules":
        said = " ".join(program.unseen)
        return {**row, "verdict": "UNKNOWN", "reason": short(f"the model could not be captured: {said}")}
    analysis = analyze_growth(program)
    growing = [output for output in program.outputs if not analysis.growth(output).bounded]
    report = None
    if count <= LARGEST_DRAWN:
        torch.manual_seed(0)
        drawn = make().eval() if is_hollow(model) else model
        unsettle(drawn)
        report = analyze(drawn, example, program=fill(program, drawn))
        for verdict in report.verdicts:
            if (
                verdict.input is None
                and verdict.output not in growing
                and verdict.status is not Status.BOUNDED
            ):
                # The module computes something else than its program: nothing is proved of it.
                return {**row, "verdict": "UNKNOWN", "reason": short(str(verdict))}
    if growing:
        return {**row, **_what_grows(analysis, growing[0], report)}
    said = str(analysis.growth(program.outputs[0]))
    cut = bounding_cut(analysis, program.outputs[0])
    if cut is not None and cut.nodes:
        said = f"cut by {cut}"
    note = (
        {} if report is not None else {"note": "program and module were not compared: no weights were drawn"}
    )
    return {**row, "verdict": "BOUNDED", "reason": short(f"for whatever weights: {said}"), **note}


def _what_grows(analysis: Analysis, output: str, report: GrowthReport | None) -> dict[str, Any]:
    """UNBOUNDED if random weights show it, else UNKNOWN with the path or the reason."""
    joint = [v for v in report.verdicts if v.input is None] if report is not None else []
    for verdict in joint:
        if verdict.status is Status.UNBOUNDED:
            way = f"; escapes along {verdict.paths[0]}" if verdict.paths else ""
            said = str(verdict).partition(": ")[2]
            return {"verdict": "UNBOUNDED", "reason": short(f"with random weights: {said}{way}")}
    growth, ways = analysis.growth(output), escape_paths(analysis, output)
    said = str(growth.reason or f"may grow ({growth})" + (f" along {ways[0]}" if ways else ""))
    why = "no weights were drawn"
    if report is not None:
        why = "no direction of growth was found with random weights"
        if all(v.status is Status.BOUNDED for v in joint):
            why = "with random weights it is bounded"
    return {"verdict": "UNKNOWN", "reason": short(f"{output}: {said}; {why}")}


def fill(program: Program, model: nn.Module) -> Program:
    """The program with the values of a module in the places that were left open."""
    values = dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )
    constants = dict(program.constants)
    for node in program.nodes:
        if node.role == "constant" and node.name not in constants:
            constants[node.name] = values[program.constant_names[node.name]].detach()
    return replace(program, constants=constants)
