"""``repair``: a trained model made bounded, the same where its data are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, fx, nn

from farfield.audit import Audit, audit
from farfield.calibration import Batches, Call, UpperQuantile, cap_axes, floating, output_tensors, run
from farfield.errors import FarfieldError, InvalidValueError
from farfield.graph import Runnable, as_module, copied, set_serving, untouched
from farfield.growth import Status, analyze
from farfield.nn import NormCap
from farfield.repair._change import Change, far_rows, measure_change
from farfield.repair._curves import curves, size_histogram
from farfield.repair._distill import distilled_norm
from farfield.repair._insert import Insertion, inserted_into, without_insertions
from farfield.repair._places import hidden_cut
from farfield.repair._program import place_path, with_places
from farfield.repair._protections import (
    cap_insertion,
    feature_insertions,
    first_rows,
    observe,
    observe_inputs,
    range_insertions,
    require_rows,
    warn_of_few_rows,
)
from farfield.repair._result import Repair

__all__ = ["Method", "RepairError", "repair"]

Method: TypeAlias = Literal["auto", "features", "cap", "range", "soft", "norm"]
_METHODS = ("auto", "features", "cap", "range", "soft", "norm")
_WIDENINGS = 8


class RepairError(FarfieldError, RuntimeError):
    """A model can't be repaired as asked; the message gives the numbers and what to try."""


def repair(
    model: Runnable,
    data: Any,
    *,
    method: Method = "auto",
    at: str | Sequence[str] = "auto",
    keep: float = 0.99,
    rollout: bool = False,
    even_if_bounded: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Repair:
    """Make a trained model bounded for every input, without retraining it and the same where its data are.

    ``method="auto"`` puts in three protections, each the identity where the rows are: a
    :class:`~farfield.nn.FeatureClamp` on every real-valued input (identity to the wider of five deviations and what
    was seen, flat to twice that, back to the mean at four times), a :class:`~farfield.nn.NormCap` behind the first
    hidden layer (the direction stays, the size does not), and a :class:`~farfield.nn.RangeHead` on every output
    (the range of the predictions). At least ``keep`` of the rows give the same output to the last bit. A bound is
    not a claim of accuracy.

    Parameters
    ----------
    model
        A module, which is left as it is: the repaired one is a copy. Or an exported program, or the path of a
        ``.pt2`` or ``.onnx`` file, which is read without running anything in it: protections stand between its
        operations.
    data
        Calibration rows, eight at least and better some hundreds: a tensor, an array or table, a tuple or dictionary
        of them, a dictionary of columns, the path of a file of rows, a DataLoader or any iterable of batches that can
        be iterated again. Streamed, never held; labels in a batch are left out. Names of columns are kept.
    method
        ``"auto"``; one of the three by name (``"features"``, ``"cap"``, ``"range"``); ``"soft"``, all three without
        kinks; or ``"norm"``: a LayerNorm behind the first hidden layer, fitted and distilled from the old model on
        the rows, without labels (this one changes weights).
    at
        Paths of the submodules behind which the cap or the norm goes (of a program, names of operations); by default
        a minimum cut of the escape paths, nearest the inputs.
    keep
        Share of the rows that must not change, to the last bit.
    rollout
        The output is the next input (a simulator's step): cap and range go on the state that is fed back, since a
        bounded correction of a state still drifts.
    even_if_bounded
        Repair a model that is bounded already, for example because its bound is useless.
    progress
        Called with (done, total) while ``method="norm"`` trains.

    Raises
    ------
    RepairError
        If the repaired model is not proved bounded, changes more rows than asked, or loses its variation.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)).eval()
    >>> fixed = repair(model, torch.randn(500, 3))
    >>> fixed.after.verdict.name, fixed.change.unchanged >= 0.99
    ('BOUNDED', True)
    """
    if method not in _METHODS:
        raise InvalidValueError(f"method is one of {', '.join(_METHODS)}, got {method!r}.")
    if not 0.0 < keep <= 1.0:
        raise InvalidValueError(f"keep is a share of the rows, in (0, 1], got {keep!r}.")
    model = as_module(model)
    batches = Batches(data, model)
    example = batches.first()
    modes = {name: module.training for name, module in model.named_modules()}
    serving = without_insertions(model)
    set_serving(serving)
    arguments = example[1] or example[0]
    before = audit(serving, arguments, rays=0)
    with untouched(serving):
        Batches(data, serving).check()
    if before.verdict is Status.BOUNDED and not even_if_bounded:
        change = measure_change(serving, serving, batches)
        return Repair(
            copied(model), (), before, before, change, (), method, keep, example, columns=batches.columns
        )
    require_rows(batches)
    sizes: Mapping[str, UpperQuantile] = {}
    paths: tuple[str, ...] = ()
    if method in ("auto", "soft", "cap", "norm") and not rollout:
        serving, paths = _cut(serving, arguments, at)
    if method == "norm":
        with untouched(serving):
            made, insertions = distilled_norm(serving, batches, paths, progress=progress)
            change = measure_change(serving, made, batches)
    else:
        insertions, sizes = _insertions(serving, batches, example, method, paths, keep, rollout)
        made, change = _kept(serving, insertions, batches, keep)
    after = audit(made, arguments, rays=0)
    _check(after, change, keep, method)
    with untouched(serving), untouched(made):  # buffers that a call moves are as they were given
        far, drawn = far_rows(serving, made, batches), curves(serving, made, batches)
    radii = {i.at: float(i.module.radius) for i in insertions if isinstance(i.module, NormCap)}
    histograms = tuple(size_histogram(at, seen, radii[at]) for at, seen in sizes.items() if at in radii)
    for name, module in made.named_modules():
        module.training = modes.get(name, model.training)
    if method != "norm":
        warn_of_few_rows(change.rows, keep)
    parts = (insertions, before, after, change, far, method, keep, example, drawn, histograms)
    return Repair(made, *parts, columns=batches.columns)


def _insertions(
    model: nn.Module,
    batches: Batches,
    example: Call,
    method: str,
    paths: tuple[str, ...],
    keep: float,
    rollout: bool,
) -> tuple[tuple[Insertion, ...], Mapping[str, UpperQuantile]]:
    soft = method == "soft"
    everything = method in ("auto", "soft")
    features: list[Insertion] = []
    if everything or method == "features":
        seen, _ = observe_inputs(batches)
        dtypes = {str(name): tensor.dtype for name, tensor in floating(example).items()}
        features = feature_insertions(seen, dtypes, soft=soft)
    guarded = inserted_into(model, tuple(features))
    if rollout:
        state, sizes = _state(guarded, batches, keep, soft)
        return (*features, *state), {"0": sizes}
    observed = observe(guarded, batches, paths)
    caps = []
    if paths:
        axes = _axes(guarded, example, paths)
        share = 1.0 - (1.0 - keep) / len(paths)
        caps = [cap_insertion(p, observed.sizes[p], share, axes[p], soft=soft) for p in paths]
    ranges: list[Insertion] = []
    if everything or method == "range":
        ranges = range_insertions(observed.outputs, observed.dtypes, soft=soft)
    return (*features, *caps, *ranges), observed.sizes


def _state(
    model: nn.Module, batches: Batches, keep: float, soft: bool
) -> tuple[list[Insertion], UpperQuantile]:
    """Cap and range on the state that a step gives: sizes are taken from the mean state, in deviations."""
    args, kwargs = batches.first()
    outputs = output_tensors(run(model, (args, kwargs)))
    (state,) = floating((args, kwargs)).values() if len(floating((args, kwargs))) == 1 else (None,)
    if state is None or len(outputs) != 1 or outputs[0].shape != state.shape:
        raise InvalidValueError(
            "rollout=True is for a step whose one output is its next input, of the same shape."
        )
    observed = observe(model, batches, ())
    seen = observed.outputs[0]
    center, deviation = seen.mean, seen.deviation.clamp_min(1e-12)
    sizes = UpperQuantile()
    axes = tuple(range(1 - state.ndim, 0)) or (-1,)
    for call in batches:
        (next_state,) = output_tensors(run(model, call))
        away = (next_state.to(torch.float64) - center) / deviation
        sizes.add(torch.linalg.vector_norm(away, 2, axes))
    dtype = outputs[0].dtype
    cap = NormCap(
        sizes.at_least(keep) * (1 + 1e-5),
        center=center.to(dtype),
        weight=(1 / deviation).to(dtype),
        axes=axes,
        soft=soft,
    )
    ranges = range_insertions(observed.outputs, observed.dtypes, soft=soft)
    return [Insertion("output", "0", cap), *ranges], sizes


def _cut(model: nn.Module, arguments: Any, at: str | Sequence[str]) -> tuple[nn.Module, tuple[str, ...]]:
    """The model and the submodules of it behind which the cap goes; a program gets these as places."""
    paths = () if at == "auto" else (at,) if isinstance(at, str) else tuple(at)
    if isinstance(model, fx.GraphModule):
        paths = paths or hidden_cut(analyze(model, arguments), model)
        return with_places(model, paths), tuple(map(place_path, paths))
    if paths:
        known = dict(model.named_modules())
        for path in paths:
            if path not in known or not path:
                raise InvalidValueError(
                    f"at= names submodules; there is no {path!r}. There are: {', '.join(filter(None, known))}."
                )
        return model, paths
    return model, hidden_cut(analyze(model, arguments), model, _returning_one(model, arguments))


def _returning_one(model: nn.Module, arguments: Any) -> set[str]:
    """Paths of the submodules that return one tensor: of several, a cap would not know which."""
    found: set[str] = set()
    handles = []
    for path, module in model.named_modules():

        def note(module: nn.Module, args: Any, output: Any, path: str = path) -> None:
            if isinstance(output, Tensor):
                found.add(path)

        handles.append(module.register_forward_hook(note))
    call: Call = ((), arguments) if isinstance(arguments, dict) else (arguments, {})
    try:
        with untouched(model):
            run(model, call)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _axes(model: nn.Module, example: Call, paths: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    handles = []
    for path in paths:

        def note(module: nn.Module, args: Any, output: Any, path: str = path) -> None:
            found[path] = cap_axes(first_rows(output, path))

        handles.append(model.get_submodule(path).register_forward_hook(note))
    try:
        run(model, example)
    finally:
        for handle in handles:
            handle.remove()
    if missing := [path for path in paths if path not in found]:
        raise InvalidValueError(
            f"The model does not call {', '.join(map(repr, missing))}, so nothing can stand behind it. Name a "
            "submodule that it calls with at=."
        )
    return found


def _kept(
    model: nn.Module, insertions: tuple[Insertion, ...], batches: Batches, keep: float
) -> tuple[nn.Module, Change]:
    """The protected model and what it changes; widened a little where rounding took a row too many."""
    for _ in range(_WIDENINGS):
        made = inserted_into(model, insertions)
        with untouched(model), untouched(made):
            change = measure_change(model, made, batches)
        caps = [i.module for i in insertions if isinstance(i.module, NormCap)]
        if change.unchanged >= keep or not caps:
            break
        for cap in caps:
            cap.radius.mul_(1.002)
    return made, change


def _check(after: Audit, change: Change, keep: float, method: str) -> None:
    if after.verdict is not Status.BOUNDED:
        raise RepairError(
            f"The repaired model is not proved bounded ({after.verdict.name}): {after.report.verdicts[0]}. "
            "method='auto' keeps every output in its range; or name places with at=."
        )
    if method != "norm" and change.unchanged < keep:
        raise RepairError(
            f"{change.unchanged:.2%} of the rows are unchanged and {keep:.2%} were asked for; the largest change is "
            f"{change.largest:.3g}. Ask for less with keep=, or use method='range', which changes no row."
        )
    if change.variance_kept < 0.5:
        raise RepairError(
            f"The repaired model keeps {change.variance_kept:.1%} of the output's variance on the rows, which "
            "makes it of little use. Choose other places with at=, or method='range'."
        )
