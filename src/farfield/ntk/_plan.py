"""How a model uses its parameters, found out by running it: its plan, made before any gradient is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError
from farfield.ntk._calls import ParameterCall, TrackedParameters
from farfield.ntk._probe import in_order, require_separate
from farfield.ntk._record import Recorder, hidden
from farfield.ntk._whole import WholePass, whole_pass

__all__ = ["CallPlan", "Select", "as_batch", "plan", "whole_plan"]

Select = Callable[[Tensor], Tensor]
"""From the model's output for one input to the K numbers whose gradients are taken."""


@dataclass(frozen=True)
class CallPlan:
    """What one run of the model on one input has shown.

    Parameters
    ----------
    calls
        In the order they are made.
    shapes
        Of each call's output: shape, dtype, device.
    opaque
        Parameters used in a way no rule knows; their gradients are taken as they are.
    outputs
        K.
    inputs
        Shapes of the calls' inputs, where their weight counts.
    moved
        Whether the model does something that may change the order of a batch.
    saved
        Bytes that autograd holds for one input between forward and backward pass.
    """

    calls: tuple[ParameterCall, ...]
    shapes: tuple[tuple[torch.Size, torch.dtype, torch.device], ...]
    opaque: tuple[str, ...]
    outputs: int
    inputs: tuple[torch.Size, ...]
    moved: bool
    saved: int


def whole_plan(
    model: nn.Module, tracked: TrackedParameters, select: Select, x: Tensor, room: int
) -> tuple[CallPlan, WholePass] | None:
    """The plan from one run on all inputs, where they are few and the model is plain; and that run."""
    found = whole_pass(model, tracked, x, room)
    if found is None:
        return None
    y, recorder, run = found
    n = len(x)
    if any(shape[:1] != (n,) for shape, _, _ in recorder.outputs):
        return None
    return CallPlan(
        calls=tuple(recorder.calls),
        shapes=tuple((torch.Size((1, *s[1:])), dtype, device) for s, dtype, device in recorder.outputs),
        opaque=(),
        outputs=select(y[:1]).numel(),
        inputs=tuple(torch.Size() if v is None else torch.Size((1, *v.shape[1:])) for v in recorder.inputs),
        moved=False,
        saved=x[0].numel() * x.element_size() + (room - (recorder.room or 0)) // n,
    ), run


def plan(model: nn.Module, tracked: TrackedParameters, select: Select, rows: Tensor) -> CallPlan:
    """Run the model on the first of a few inputs and note how it uses its parameters; then on all, to see that
    the others change nothing.
    """
    opaque: set[str] = set()
    first = rows[:1]  # outside of the recorder, which would take it for a call of the model
    held: dict[int, tuple[int, torch.UntypedStorage]] = {}

    def note(value: Tensor) -> None:
        # No tensor is kept: the graph is looked at, not run back, and a node that saved its own output would hold
        # itself. Its storage is: freed memory is given out again, and two would count as one, or not, by chance.
        # Of a storage only what is looked at counts: the first of a million inputs is a view of all of them.
        storage = value.untyped_storage()
        size = min(value.numel() * value.element_size(), storage.nbytes())
        before, _ = held.get(storage.data_ptr(), (0, None))
        held[storage.data_ptr()] = max(size, before), storage

    while True:
        held.clear()
        recorder = Recorder(tracked, None, set(opaque), keep=True, trace=True)
        hooks = torch.autograd.graph.saved_tensors_hooks(note, _never)
        with torch.enable_grad(), hooks:
            with recorder:
                y = tracked.substitute(model, {}, first)
            numbers = select(y)
        if not recorder.untouched():
            raise InvalidValueError(
                "The model writes in place to a tensor that one of its layers was given before, so the layer's "
                "gradient can't be taken: training it would fail as well. Use an ordinary operation (h = h + f(h), "
                "not h += f(h))."
            )
        found = recorder.opaque | hidden(recorder, numbers)
        if found <= opaque:
            break
        # A parameter met first in a call that is understood and later in one that is not must be left alone in
        # both.
        opaque |= found
    for parameter in model.parameters():
        held.pop(parameter.untyped_storage().data_ptr(), None)
    result = CallPlan(
        calls=tuple(recorder.calls),
        shapes=tuple(recorder.outputs),
        opaque=tuple(sorted(opaque)),
        outputs=numbers.numel(),
        inputs=tuple(torch.Size() if v is None else v.shape for v in recorder.inputs),
        moved=recorder.moved,
        saved=sum(size for size, _ in held.values()),
    )
    if recorder.plain and y.shape[:1] == (1,):
        return result
    together = Recorder(tracked, None, set(opaque), keep=True)
    with torch.enable_grad(), together:
        several = tracked.substitute(model, {}, rows)
    require_separate(recorder, y, several, rows)

    def alone(i: int) -> list[Tensor]:
        one, row = Recorder(tracked, None, set(opaque), keep=True), rows[i : i + 1]
        with torch.no_grad(), one:
            tracked.substitute(model, {}, row)
        return one.kept

    if as_batch(result, together, several, len(rows)) and not in_order(several, together.kept, alone):
        return replace(result, moved=True)
    return result


def as_batch(found: CallPlan, recorder: Recorder, y: Any, n: int) -> bool:
    """Whether a run on n inputs made the calls of a run on one, with n rows where that had one."""
    if found.opaque or found.moved or any(not shape or shape[0] != 1 for shape, _, _ in found.shapes):
        return False
    if tuple(recorder.calls) != found.calls or recorder.opaque:
        return False
    grown = all(
        output[0] == (n, *shape[1:])
        for output, (shape, _, _) in zip(recorder.outputs, found.shapes, strict=True)
    )
    inputs = all(v is None or (v.dim() > 0 and len(v) == n) for v in recorder.inputs)
    if not (grown and inputs and isinstance(y, Tensor) and y.dim() > 0 and len(y) == n):
        return False
    return all(kept.requires_grad for kept in recorder.kept)  # not where the model switches gradients off


def _never(value: None) -> Tensor:
    raise AssertionError("the graph of a plan is not run back")
