"""What a repair gives back: the repaired model, what was done to it, and the ways to write it down."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from farfield._budget import Budget
from farfield.audit import Audit
from farfield.calibration import Call, Columns, argument_names, entry_name, run
from farfield.errors import InvalidValueError
from farfield.graph import (
    OnnxModule,
    copied,
    export_for_any_rows,
    in_memory,
    result_names,
    write_program,
)
from farfield.nn import FeatureClamp, NormCap, RangeHead
from farfield.repair._change import BROKEN, Change, FarRow
from farfield.repair._curves import ComparedCurve, SizeHistogram
from farfield.repair._insert import PREFIX, Inserted, Insertion, without_insertions
from farfield.repair._onnx import save_onnx
from farfield.repair._program import without_places

__all__ = ["Repair"]


@dataclass(frozen=True)
class Repair:
    """A repaired model and what the repair did.

    Parameters
    ----------
    model
        A new module, an instance of the class of the old one. Every old key of ``state_dict`` is there with its
        old value (except after ``method="norm"``, which trains); inserted buffers have the prefix
        ``farfield_repair``.
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
    columns
        Argument (position or name) → names of its columns, for those that have names.
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
    columns: Columns = field(default_factory=dict, repr=False)

    def undo(self) -> nn.Module:
        """The model as it was, as a copy."""
        return without_places(without_insertions(self.model))

    def certificate(self, time_budget: float | Budget = 60.0, **options: Any) -> Any:
        """Bounds of the repaired model for every input; see :func:`farfield.certify`."""
        from farfield.certify import certify

        return certify(self.model, self._arguments(), time_budget=time_budget, **options)

    def save(self, path: str | Path) -> None:
        """Write the repaired model as a program for any number of rows, ``.pt2`` or ``.onnx``, or its weights.

        Of a model that was read from an ``.onnx`` file, ``.onnx`` is the original graph with the protections as
        standard operators, everything else byte for byte as it was. ``.safetensors`` and ``.pt`` hold the state dict
        with the settings of the protections: :func:`farfield.repair.restore` puts them into the module again.
        """
        place, model = Path(path), in_memory(self.model)
        if place.suffix == ".onnx" and isinstance(original := self.undo().eval(), OnnxModule):
            save_onnx(original, self.inserted, self.example, place)
        elif place.suffix in (".pt2", ".onnx"):
            serving = copied(model).eval()
            args, kwargs = self.example
            program = export_for_any_rows(serving, args, kwargs)
            write_program(program, place, names=result_names(serving, run(serving, self.example)))
        elif place.suffix == ".safetensors":
            from farfield.errors import MissingExtraError

            try:
                from safetensors.torch import save_model
            except ImportError as error:
                raise MissingExtraError("Writing safetensors", "safetensors", "certify") from error
            holder = next((part for part in model.children() if isinstance(part, Inserted)), None)
            settings = {PREFIX: holder.settings} if holder is not None else None
            save_model(model, str(place), metadata=settings)
        elif place.suffix in (".pt", ".pth"):
            torch.save(model.state_dict(), made := io.BytesIO())
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
                "input": f"# on argument {self._argument(insertion.at)}, before anything else",
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

    def _argument(self, at: str) -> str:
        """The argument's own name, with those of its columns."""
        own = self.columns.get(at, ())
        names = ", ".join(own[:4]) + (f" and {len(own) - 4} more" if len(own) > 4 else "")
        return entry_name(at, (), {}, argument_names(self.model)) + (f" ({names})" if names else "")

    def _described(self, insertion: Insertion) -> str:
        module = insertion.module
        if insertion.place == "input":
            what = f"{type(module).__name__} on {self._argument(insertion.at)}"
            named = insertion.at in self.columns or not isinstance(module, FeatureClamp)
            return what if named else f"{what} ({int(module.get_buffer('low').numel())} features)"
        if isinstance(module, NormCap):
            return f"{insertion} (size at most {float(module.radius):.4g})"
        return str(insertion)

    def __str__(self) -> str:
        if not self.inserted:
            return (
                "Nothing was inserted: the model is bounded already, for every input. "
                "farfield.certify(model, inputs) gives the numbers. Where only its end bounds it, as an actor's tanh "
                "does, even_if_bounded=True protects its inputs too."
            )
        words = [f"{self.before.verdict.name} → {self.after.verdict.name}."]
        paths = [v.paths[0] for v in self.before.report.verdicts if v.input is None and v.paths]
        if paths:
            words.append(f"Before: the output grows without limit along {paths[0]}.")
        words.append("Inserted: " + "; ".join(map(self._described, self.inserted)) + ".")
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
            was = f"the largest |output| was {_size(row.before)} and is now {_size(row.after)}"
            words.append(f"With the rows times {row.scale:.0e}, {was}.")
        broken = [row for row in self.far if row.feature is not None]
        if broken:
            row = max(broken, key=lambda r: r.before)
            words.append(
                f"With {row.feature} at {BROKEN:g} standard deviations, it was {_size(row.before)} and is now "
                f"{_size(row.after)}."
            )
        words.append("Proved for every real input. A bound is not a claim of accuracy.")
        return "\n".join(words)


def _size(value: float) -> str:
    """A largest output; what overflowed is not the largest number of its type."""
    return f"{value:.3g}" if value < sys.float_info.max else "infinite"


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
