"""``repair``: a trained model made bounded, the same where its data are."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, fx, nn

from farfield.audit import Audit, audit
from farfield.calibration import (
    Batches,
    Call,
    UpperQuantile,
    both_names,
    cap_axes,
    device_of,
    floating,
    output_tensors,
    run,
)
from farfield.errors import FarfieldError, InvalidValueError
from farfield.graph import Runnable, as_module, in_memory, set_serving, untouched
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
    state: str | None = None,
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
        A module, which is left as it is: the repaired one is a copy, on the same device (limits are learned in main
        memory). Or an exported program, or the path of a ``.pt2`` or ``.onnx`` file, which is read without running
        anything in it: protections stand between its operations.
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
    state
        Of a step with several arguments (controls, forcings), the name or position of the one that is fed back; the
        others are protected as features. Means ``rollout=True``; by default the step has one real-valued argument.
    even_if_bounded
        Repair a model that is bounded already: because its bound is useless, or because what bounds it stands at the
        end (the tanh of an actor) and its inputs deserve protection.
    progress
        Called with (done, total) while ``method="norm"`` trains.

    Raises
    ------
    RepairError
        If the repaired model is not proved bounded, changes more rows than asked, or loses its variation.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)).eval()
    >>> fixed = repair(model, torch.randn(500, 3))
    >>> fixed.after.verdict.name, fixed.change.unchanged >= 0.99
    ('BOUNDED', True)
    """
    if method not in _METHODS:
        raise InvalidValueError(f"method is one of {', '.join(_METHODS)}, got {method!r}.")
    if not 0.0 < keep <= 1.0:
        raise InvalidValueError(f"keep is a share of the rows, in (0, 1], got {keep!r}.")
    rollout = rollout or state is not None
    model = as_module(model)
    if (home := device_of(model)) is not None and home.type != "cpu":
        options: dict[str, Any] = {
            "method": method,
            "at": at,
            "keep": keep,
            "rollout": rollout,
            "state": state,
        }
        options |= {"even_if_bounded": even_if_bounded, "progress": progress}
        done = repair(in_memory(model), data, **options)
        return replace(done, model=done.model.to(home))
    batches = Batches(data, model)
    example = batches.first()
    serving = without_insertions(model)
    set_serving(serving)
    arguments = example[1] or example[0]
    before = audit(serving, arguments, rays=0)
    with untouched(serving):
        Batches(data, serving).check()
        _check_that_it_is_no_draw(serving, batches)
    if before.verdict is Status.BOUNDED and not even_if_bounded:
        change = measure_change(serving, serving, batches)
        return Repair(serving, (), before, before, change, (), method, keep, example, columns=batches.columns)
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
        fed_back = (state or "") if rollout else None
        insertions, sizes = _insertions(serving, batches, example, method, paths, keep, fed_back)
        made, change = _kept(serving, insertions, batches, keep)
    after = audit(made, arguments, rays=0)
    _check(after, change, keep, method)
    with untouched(serving), untouched(made):  # buffers that a call moves are as they were given
        far, drawn = far_rows(serving, made, batches), curves(serving, made, batches)
    radii = {i.at: float(i.module.radius) for i in insertions if isinstance(i.module, NormCap)}
    histograms = tuple(size_histogram(at, seen, radii[at]) for at, seen in sizes.items() if at in radii)
    if method != "norm":
        warn_of_few_rows(change.rows, keep)
    parts = (insertions, before, after, change, far, method, keep, example, drawn, histograms)
    return Repair(made, *parts, columns=batches.columns)


def _check_that_it_is_no_draw(model: nn.Module, batches: Batches) -> None:
    """Raise where two calls on the same rows differ: no row of such a model is unchanged, whatever is put in."""
    call = batches.some()
    first, second = (output_tensors(run(model, call)) for _ in range(2))
    if all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True)):
        return
    switch = "deterministic" in inspect.signature(model.forward).parameters
    name = batches.arguments[0] if batches.arguments else "x"
    how = (
        f"Pass data={{{name!r}: rows, 'deterministic': True}} to take its mean."
        if switch
        else "Repair the part that gives the mean, or a module whose forward returns it."
    )
    raise InvalidValueError(f"The model draws random numbers: two calls on the same rows differ. {how}")


def _insertions(
    model: nn.Module,
    batches: Batches,
    example: Call,
    method: str,
    paths: tuple[str, ...],
    keep: float,
    fed_back: str | None,
) -> tuple[tuple[Insertion, ...], Mapping[str, UpperQuantile]]:
    soft = method == "soft"
    everything = method in ("auto", "soft")
    features: list[Insertion] = []
    if everything or method == "features":
        seen, _ = observe_inputs(batches)
        dtypes = {str(name): tensor.dtype for name, tensor in floating(example).items()}
        features = feature_insertions(seen, dtypes, soft=soft)
    guarded = inserted_into(model, tuple(features))
    if fed_back is not None:
        state, sizes = _state(guarded, batches, keep, soft, fed_back)
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
    model: nn.Module, batches: Batches, keep: float, soft: bool, fed_back: str
) -> tuple[list[Insertion], UpperQuantile]:
    """Cap and range on the state that a step gives: sizes are taken from the mean state, in deviations."""
    args, kwargs = batches.first()
    outputs = output_tensors(run(model, (args, kwargs)))
    real = {str(name): tensor for name, tensor in floating((args, kwargs)).items()}
    known = [name for name in (both_names(fed_back, batches.arguments) if fed_back else real) if name in real]
    if len(known) != 1:
        names = ", ".join(batches.entry(name) for name in real)
        raise InvalidValueError(
            f"A step feeds one of its arguments back, and it has {names or 'no real-valued ones'}: name it with "
            "state=. The others are protected as features."
        )
    state = real[known[0]]
    if len(outputs) != 1 or outputs[0].shape != state.shape:
        given = ", ".join(str(list(output.shape)) for output in outputs)
        raise InvalidValueError(
            f"A step returns the next state, of the state's own shape: {batches.entry(known[0])} is "
            f"{list(state.shape)} and the model returns {given or 'no tensor'}."
        )
    _warn_of_a_difference(model, batches, known[0])
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


def _warn_of_a_difference(model: nn.Module, batches: Batches, name: str) -> None:
    """Warn where what the model returns lies about 0 and far from the state: a difference that is added to it."""
    call = batches.some()
    (given,) = (tensor.double() for key, tensor in floating(call).items() if str(key) == name)
    (output,) = (tensor.double() for tensor in output_tensors(run(model, call)))
    close = (output - given).square().mean()
    if len(given) >= 8 and output.square().mean() < 0.05 * given.square().mean() < 0.1 * close:
        warnings.warn(
            "What the model returns is much smaller than its state, as a difference is that is added to it: a "
            "bounded difference still drifts. If it is one, repair a module whose forward returns the next state, "
            f"{batches.entry(name)} + model({batches.entry(name)}).",
            stacklevel=5,
        )


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
