"""``repair``: a trained model made bounded, the same where its data are."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, fx, nn

from farfield._budget import Budget
from farfield.audit import Audit, audit
from farfield.calibration import Batches, Call, UpperQuantile, cap_axes, floating, output_tensors, run
from farfield.errors import FarfieldError, InvalidValueError
from farfield.graph import Runnable, as_module, copied, export_model, set_serving, untouched
from farfield.growth import Status, analyze
from farfield.nn import FeatureClamp, NormCap, RangeHead
from farfield.repair._change import BROKEN, Change, FarRow, far_rows, measure_change
from farfield.repair._curves import ComparedCurve, SizeHistogram, curves, size_histogram
from farfield.repair._distill import distilled_norm
from farfield.repair._insert import Insertion, inserted_into, without_insertions
from farfield.repair._onnx import save_onnx
from farfield.repair._places import hidden_cut
from farfield.repair._program import place_path, with_places, without_places
from farfield.repair._protections import (
    cap_insertion,
    feature_insertions,
    first_rows,
    observe,
    observe_inputs,
    range_insertions,
)

__all__ = ["Method", "Repair", "RepairError", "repair"]

Method: TypeAlias = Literal["auto", "features", "cap", "range", "soft", "norm"]
_METHODS = ("auto", "features", "cap", "range", "soft", "norm")
_WIDENINGS = 8


class RepairError(FarfieldError, RuntimeError):
    """A model can't be repaired as asked; the message gives the numbers and what to try."""


@dataclass(frozen=True)
class Repair:
    """A repaired model and what the repair did.

    Parameters
    ----------
    model
        A new module, an instance of the class of the old one. Every old key of ``state_dict`` is there with its old value (except after
        ``method="norm"``, which trains); inserted buffers have the prefix ``farfield_repair``.
    inserted
        What was put where, in the order of computation; empty if the model was bounded already.
    before, after
        Audits.
    change
        What changed on the calibration rows.
    far
        Outputs before and after, far from the rows and with each single feature broken.
    example
        The first calibration row, as the model is called.
    curves
        Both models along rays and with each feature swept alone.
    sizes
        How large the rows were where a cap stands.
    """

    model: nn.Module
    inserted: tuple[Insertion, ...]
    before: Audit
    after: Audit
    change: Change
    far: tuple[FarRow, ...]
    method: str
    keep: float
    example: Call = field(repr=False)
    curves: tuple[ComparedCurve, ...] = field(default=(), repr=False)
    sizes: tuple[SizeHistogram, ...] = field(default=(), repr=False)

    def undo(self) -> nn.Module:
        """The model as it was, as a copy."""
        return without_places(without_insertions(self.model))

    def certificate(self, time_budget: float | Budget = 60.0, **options: Any) -> Any:
        """Bounds of the repaired model for every input; see :func:`farfield.certify`."""
        from farfield.certify import certify

        return certify(self.model, self._arguments(), time_budget=time_budget, **options)

    def save(self, path: str | Path) -> None:
        """Write the repaired model: ``.pt2`` (the whole program), ``.safetensors`` or ``.pt`` (its state dict).

        A model that was read from an ``.onnx`` file is also written to one: the original graph with the protections
        as standard operators, everything else byte for byte as it was.
        """
        place = Path(path)
        if place.suffix == ".pt2":
            serving = copied(self.model).eval()
            # By way of memory: on a full disk torch's own writer ends the process.
            torch.export.save(export_model(serving, *self.example, dynamic_batch=True), made := io.BytesIO())
            place.write_bytes(made.getbuffer())
        elif place.suffix == ".onnx":
            save_onnx(self.undo().eval(), self.inserted, self.example, place)
        elif place.suffix == ".safetensors":
            from farfield.errors import MissingExtraError

            try:
                from safetensors.torch import save_model
            except ImportError as error:
                raise MissingExtraError("Writing safetensors", "safetensors", "certify") from error
            save_model(self.model, str(place))
        elif place.suffix in (".pt", ".pth"):
            torch.save(self.model.state_dict(), made := io.BytesIO())
            place.write_bytes(made.getbuffer())
        else:
            raise InvalidValueError(
                f"A repaired model is written to .pt2, .onnx, .safetensors or .pt, not {place.suffix!r}."
            )

    def patch(self) -> str:
        """The lines a person would write to get the same, with the numbers."""
        lines = ["import torch", "from farfield.nn import FeatureClamp, NormCap, RangeHead", ""]
        for insertion in self.inserted:
            where = {
                "input": f"# on argument {insertion.at}, before anything else",
                "hidden": f"# on what {insertion.at!r} returns",
                "output": f"# on output {insertion.at}, last of all",
            }[insertion.place]
            lines += [where, f"{insertion.key} = {_source(insertion.module)}"]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "method": self.method,
            "keep": self.keep,
            "before": self.before.verdict.name,
            "after": self.after.verdict.name,
            "inserted": [{"place": i.place, "at": i.at, "module": repr(i.module)} for i in self.inserted],
            "change": self.change.to_dict(),
            "far": [row.to_dict() for row in self.far],
            "curves": [curve.to_dict() for curve in self.curves],
            "sizes": [histogram.to_dict() for histogram in self.sizes],
            "said": str(self).splitlines(),
            "patch": self.patch(),
        }

    def to_html(self, *, name: str = "", certificate: Any = None) -> str:
        """One page: what was wrong, what was put where, both models beside each other; loads nothing.

        ``certificate`` (from :meth:`certificate`) adds the proved bounds.
        """
        from farfield.report import render_repair

        proved = certificate.to_dict() if certificate is not None else None
        return render_repair(self.to_dict(), name=name or type(self.model).__name__, certificate=proved)

    def _repr_html_(self) -> str:
        from farfield.report import repair_summary

        return repair_summary(self.to_dict())

    def plot(self, *, ax: Any = None) -> Any:
        """Draw both models along rays through rows, the range of the rows shaded; needs ``farfield[plot]``.

        On the matplotlib axes ``ax``, or those of a new figure; they are returned.
        """
        from farfield.report import plot_repair

        return plot_repair(self.to_dict(), ax=ax)

    def _arguments(self) -> Any:
        args, kwargs = self.example
        return kwargs or args

    def __str__(self) -> str:
        if not self.inserted:
            return (
                "Nothing was inserted: the model is bounded already, for every input. "
                "farfield.certify(model, inputs) gives the numbers."
            )
        words = [f"{self.before.verdict.name} → {self.after.verdict.name}."]
        paths = [v.paths[0] for v in self.before.report.verdicts if v.input is None and v.paths]
        if paths:
            words.append(f"Before: the output grows without limit along {paths[0]}.")
        words.append("Inserted: " + "; ".join(_described(i) for i in self.inserted) + ".")
        if self.method in ("auto", "soft") and not any(isinstance(i.module, NormCap) for i in self.inserted):
            words.append(
                "No cap was inserted: no submodules with at least three features lie on every path from input to "
                "output. To cap an operation instead, repair torch.export.export(model, inputs)."
            )
        words.append(str(self.change))
        heads = [i.module for i in self.inserted if isinstance(i.module, RangeHead)]
        if heads and isinstance(heads[0].low, Tensor):
            low, high = min(float(h.low.min()) for h in heads), max(float(h.high.max()) for h in heads)
            words.append(f"For every input the output now stays in [{low:.4g}, {high:.4g}].")
        worst = [row for row in self.far if row.feature is None]
        if worst:
            row = worst[-1]
            was = f"the largest |output| was {row.before:.3g} and is now {row.after:.3g}"
            words.append(f"With the rows times {row.scale:.0e}, {was}.")
        broken = [row for row in self.far if row.feature is not None]
        if broken:
            row = max(broken, key=lambda r: r.before)
            words.append(
                f"With feature {row.feature} at {BROKEN:g} standard deviations, it was {row.before:.3g} and is now "
                f"{row.after:.3g}."
            )
        words.append("Proved for every real input. A bound is not a claim of accuracy.")
        return "\n".join(words)


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
        Calibration rows: a tensor, an array or table, a tuple or dictionary of them, a DataLoader or any iterable of
        batches that can be iterated again. Streamed, never held; labels in a batch are left out.
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
        return Repair(copied(model), (), before, before, change, (), method, keep, example)
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
    return Repair(made, insertions, before, after, change, far, method, keep, example, drawn, histograms)


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


def _described(insertion: Insertion) -> str:
    module = insertion.module
    if isinstance(module, FeatureClamp):
        return f"{insertion} ({module.low.numel()} features)"
    if isinstance(module, NormCap):
        return f"{insertion} (size at most {float(module.radius):.4g})"
    return str(insertion)


def _source(module: nn.Module) -> str:
    def numbers(tensor: Tensor) -> str:
        return f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype})"

    if isinstance(module, FeatureClamp):
        options = f"center={numbers(module.center)}, flat={module.flat}, end={module.end}, soft={module.soft}"
        return f"FeatureClamp({numbers(module.low)}, {numbers(module.high)}, {options})"
    if isinstance(module, NormCap):
        parts = f"center={numbers(module.center)}, weight={numbers(module.weight)}"
        return f"NormCap({float(module.radius)!r}, {parts}, axes={module.axes}, soft={module.soft})"
    if isinstance(module, RangeHead):
        return f"RangeHead({numbers(module.low)}, {numbers(module.high)}, knee={module.knee})"
    return (
        f"torch.nn.{module!r}  # its weights are trained with the model's: load them from the repaired model"
    )
