"""``guard``: a model that says, with every answer, how far outside its calibration rows the question was."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from farfield.calibration import (
    Batches,
    Call,
    Columns,
    FeatureStatistics,
    UpperQuantile,
    argument_names,
    both_names,
    cap_axes,
    device_of,
    entry_name,
    flat_rows,
    floating,
    map_call,
    map_leaves,
    output_leaves,
    output_tensors,
    rows_of,
    run,
    tensor_of,
)
from farfield.certify import Certificate, verify_certificate
from farfield.errors import InvalidValueError
from farfield.graph import (
    Runnable,
    as_module,
    copied,
    export_for_any_rows,
    in_memory,
    result_names,
    untouched,
    write_program,
)
from farfield.monitor._limits import Excess, InputLimits, OutputLimits, scale_of
from farfield.monitor._summary import GuardSummary

__all__ = ["Answer", "Guard", "guard"]

Answer: TypeAlias = Literal["flag", "cap", "fallback"]


class _AsItsModel:
    """A signature that is the model's for a guard, and left to ``inspect`` for the class."""

    def __get__(self, guarded: Guard | None, owner: type) -> inspect.Signature | None:
        return None if guarded is None else inspect.signature(guarded.model.forward)


class Guard(nn.Module):
    """A model with limits: its forward gives (output, score); made by :func:`guard`.

    The score has one entry per row. At most 1: everything about the row was met on calibration rows. Above 1 it grows
    with the distance, up to 1e30; ∞ for NaN or infinity in an input. All of it is tensor operations on buffers: it is
    exported, compiled and converted with the model, and never waits for the device.
    """

    counted: Tensor
    worst: Tensor
    __signature__ = _AsItsModel()

    def __init__(
        self,
        model: nn.Module,
        limits: dict[str, InputLimits],
        outputs: list[FeatureStatistics | None],
        on_outside: Answer,
        fallback: Any,
        promised: tuple[Tensor, Tensor] | None,
        like: Call = ((), {}),
        columns: Columns | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._like, self._columns = like, dict(columns or {})
        names = argument_names(model)
        self._called = {alias: name for name in limits for alias in both_names(name, names)}
        self.limits = nn.ModuleDict({f"input_{name}": limit for name, limit in limits.items()})
        self.on_outside = on_outside
        self.counting = True
        self.fallback = fallback if isinstance(fallback, nn.Module) else None
        wide = max((limit.low.dtype for limit in limits.values()), key=lambda dtype: dtype.itemsize)
        answer = None if self.fallback is not None else fallback
        self.answers = nn.ModuleDict(
            {
                str(number): OutputLimits(seen, answer, None if number else promised, wide)
                for number, seen in enumerate(outputs)
                if seen is not None
            }
        )
        # Buffers, so that counting never waits for the device; each process has its own, in no file.
        sizes = {f"outside_{name}": limit.low.numel() for name, limit in limits.items()}
        with torch.inference_mode(False):
            for name, size in {"counted": 3, "worst": 1, **sizes}.items():
                kind = torch.int32 if name == "worst" else torch.int64
                zeros = torch.zeros(size, dtype=kind, device=next(iter(limits.values())).low.device)
                self.register_buffer(name, zeros, persistent=False)
        # What DistributedDataParallel would overwrite with the first process's.
        self._ddp_params_and_buffers_to_ignore = ["counted", "worst", *sizes]

    def forward(self, x: Any = None, /, *more: Any, **named: Any) -> tuple[Any, Tensor]:
        """(what the model answers, score of each row); no branch asks for a number."""
        positional = () if x is None else (x, *more)
        given, pairs = self._typed(positional, named), self._pairs()
        told = [limit(given[name]) for name, limit in pairs]
        score = inputs = torch.stack([one for one, _ in told]).amax(0)
        if self.on_outside != "flag":
            given = {**given, **{name: limit.capped(given[name]) for name, limit in pairs}}
        args, kwargs = self._args(given, positional), self._kwargs(given, named)
        result = self.model(*args, **kwargs)
        leaves = [result] if isinstance(result, Tensor) else output_leaves(result)
        for limit, leaf in self._answers(leaves).values():
            score = torch.maximum(score, limit(leaf).to(score.dtype))
        if self.counting and not _is_recorded() and len(score):
            self._count(score.detach(), inputs.detach(), [excess.detach() for _, excess in told])
        if self.on_outside == "fallback":
            leaves = self._replaced(leaves, score, args, kwargs)
        if isinstance(result, Tensor):
            return leaves[0], score
        queue = iter(leaves)
        return map_leaves(lambda _: next(queue), result), score

    def explain(self, x: Any = None, /, *more: Any, **named: Any) -> list[Excess]:
        """For each row what lies farthest outside, or is nearest to its limit: a feature, the size, or an output.

        The model is asked once.
        """
        positional = () if x is None else (x, *more)
        given = self._typed(positional, named)
        found: list[Excess] = []
        for name, limit in self._pairs():
            own = limit.explain(given[name], partial(self._entry, name))
            found = (
                [max(pair, key=lambda e: e.score) for pair in zip(found, own, strict=True)] if found else own
            )
        if self.on_outside != "flag":
            given = {**given, **{name: limit.capped(given[name]) for name, limit in self._pairs()}}
        with torch.no_grad():
            answer = self.model(*self._args(given, positional), **self._kwargs(given, named))
        for number, (answered, leaf) in self._answers(output_leaves(answer)).items():
            name = "output" if len(self.answers) == 1 else f"output_{number}"
            own = answered.explain(leaf, partial(self._entry, name))
            found = [max(pair, key=lambda e: e.score) for pair in zip(found, own, strict=True)]
        return found

    def summary(self) -> GuardSummary:
        """What has been counted since the last :meth:`reset`, in this process; exported copies don't count."""
        rows, outside, not_finite = self.counted.tolist()
        features = {
            self._entry(name, *self._place(name, k)): int(number)
            for name, _ in self._pairs()
            for k, number in enumerate(self.get_buffer(f"outside_{name}").tolist())
            if number
        }
        worst = float(self.worst.view(torch.float32))
        return GuardSummary(rows, outside, worst, not_finite, features)

    def reset(self) -> None:
        """Count from 0."""
        for name in self._ddp_params_and_buffers_to_ignore:
            self.get_buffer(name).zero_()

    def save(self, path: str | Path) -> None:
        """Write guard and model as one program, for any number of rows: ``.pt2`` or ``.onnx``.

        An ONNX file names its results: the model's own names where it has them, otherwise ``output`` (``output_0``,
        ``output_1``, …), and ``score`` (``guard_score`` where the model has a score of its own).
        """
        place, counting = Path(path), self.counting
        if place.suffix not in (".pt2", ".onnx"):
            raise InvalidValueError(f"A guard is written to .pt2 or .onnx, not {place.suffix!r}.")
        args, kwargs = in_memory(self._like)
        made = in_memory(self)
        made.counting = False
        try:
            with torch.no_grad():
                names = result_names(made.model, made(*args, **kwargs)[0])
            score = "guard_score" if "score" in names else "score"
            program = export_for_any_rows(_with_names(made, args, kwargs), args, kwargs)
            write_program(program, place, names=[*names, score])
        finally:
            self.counting = counting

    # ------------------------------------------------------------------ how

    def _pairs(self) -> list[tuple[str, InputLimits]]:
        return [(name.removeprefix("input_"), limit) for name, limit in self.limits.items()]  # type: ignore[misc]

    def _typed(self, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        pairs = [*((str(i), a) for i, a in enumerate(args)), *named.items()]
        given = {self._called.get(name, name): value for name, value in pairs}  # as at calibration
        for name, limit in self._pairs():
            if name not in given:
                raise InvalidValueError(
                    f"The guard was calibrated with an argument {name!r}, which is missing."
                )
            value = tensor_of(given[name], limit.like.dtype, self._columns.get(name, ()))
            if not isinstance(value, Tensor):
                raise InvalidValueError(
                    f"A guard takes tensors, arrays and tables; the argument {name!r} is a {type(value).__name__}. "
                    "Wrap the model in one that takes its parts as arguments of their own."
                )
            given[name] = limit.typed(value if value is given[name] else value.to(limit.like.device))
        return given

    def _entry(self, argument: str, *place: int) -> str:
        return entry_name(argument, place, self._columns, argument_names(self.model))

    def _place(self, argument: str, number: int) -> tuple[int, ...]:
        """Indices in a row of a feature that is known by its number."""
        shape = next(limit.row_shape for name, limit in self._pairs() if name == argument)
        return tuple(int(i) for i in torch.unravel_index(torch.tensor(number), shape))

    def _args(self, given: dict[str, Any], positional: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(given[self._called.get(str(i), str(i))] for i in range(len(positional)))

    def _kwargs(self, given: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
        return {name: given[self._called.get(name, name)] for name in named}

    def _answers(self, leaves: list[Any]) -> dict[int, tuple[OutputLimits, Tensor]]:
        """Number → limits and tensor, of the outputs that have a row for each row."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        known = {int(number): limit for number, limit in self.answers.items()}
        return {k: (known[k], t) for k, t in enumerate(tensors) if k in known and t.ndim}  # type: ignore[misc]

    def _replaced(
        self, leaves: list[Any], score: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        others: list[Any] = []
        if self.fallback is not None:
            others = output_tensors(self.fallback(*args, **kwargs))
        made = list(leaves)
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for number, (limit, leaf) in self._answers(leaves).items():
            other = others[number] if others else limit.answer.to(leaf.dtype)
            inside = (score <= 1.0).reshape(score.shape[0], *(1,) * (leaf.ndim - 1))
            made[places[number]] = torch.where(inside, leaf, other)
        return made

    def _count(self, score: Tensor, inputs: Tensor, excesses: list[Tensor]) -> None:
        """Count the rows, with what their answers say; the numbers stay on the device."""
        each = torch.stack([torch.ones_like(score) > 0, score > 1.0, torch.isinf(inputs)])
        self.counted += each.sum(1)
        # Bits of numbers above 0 have their order: the worst is kept whatever type a module is cast to.
        self.worst.clamp_(min=score.float().amax().view(torch.int32))
        for (name, limit), excess in zip(self._pairs(), excesses, strict=True):
            self.get_buffer(f"outside_{name}").add_(limit.outside(excess))


def _is_recorded() -> bool:
    """Whether a program is made of the model now, which shall not count."""
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return tracing or torch.compiler.is_exporting()


def _with_names(guarded: Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """The guard with its model's own argument names, which a file shows; torch.export asks for them one by one."""
    kind = inspect.Parameter
    own = inspect.signature(guarded.model.forward).parameters.values()
    names = [p.name for p in own if p.kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD)]
    names += [f"input_{k}" for k in range(len(names), len(args))]

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.guarded = guarded

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.guarded(*args, **kwargs)

    given = [kind(name, kind.POSITIONAL_OR_KEYWORD) for name in ("self", *names[: len(args)])]
    given += [kind(name, kind.KEYWORD_ONLY) for name in kwargs]
    Named.forward.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    return Named().eval()


def guard(
    model: Runnable,
    data: Any,
    *,
    keep: float = 0.99,
    on_outside: Answer = "flag",
    fallback: Any = None,
    certificate: Certificate | str | Path | None = None,
) -> Guard:
    """A model that gives (output, score): the score says how far outside its calibration rows an input is.

    Two passes over the inputs and one of the model over the rows: each feature's range, an ellipsoid
    ‖(x − mean)/deviation‖ ≤ R that holds at least ``keep`` of the rows, and each output's range. The score is the
    largest excess. It is no detector of meaning: an input may be inside and still be of another kind.

    Parameters
    ----------
    model
        A module, which is copied and put in evaluation mode; an exported program; or the path of a ``.pt2`` or
        ``.onnx`` file.
    data
        Calibration rows, as for :func:`farfield.repair`.
    keep
        Share of the rows that are inside.
    on_outside
        ``"flag"``: the model's own answer. ``"cap"``: its answer to the nearest input that was seen, a broken feature
        at its mean; bounded for every input. ``"fallback"``: another answer; never anything that is not finite.
    fallback
        For ``"fallback"``: a number or a row, or a module that is asked instead, with the capped input. The mean
        prediction by default.
    certificate
        Bounds of the model's first output: checked against the model now, and every answer against them; an answer
        outside has the largest score, 1e30.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> rows = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    >>> guarded = guard(model, rows, on_outside="fallback")
    >>> with torch.no_grad():
    ...     _, score = guarded(torch.stack([rows[0], 1000 * rows[0], torch.full((3,), float("nan"))]))
    >>> bool(score[0] <= 1), bool(score[1] > 100), float(score[2])
    (True, True, inf)
    """
    if not 0.0 < keep <= 1.0:
        raise InvalidValueError(f"keep is a share of the rows, in (0, 1], got {keep!r}.")
    if on_outside not in get_args(Answer):
        raise InvalidValueError(f"on_outside is one of {', '.join(get_args(Answer))}, got {on_outside!r}.")
    if fallback is not None and on_outside != "fallback":
        raise InvalidValueError(f"A fallback is for on_outside='fallback', not {on_outside!r}.")
    model = as_module(model)
    promised = None
    if certificate is not None:
        found = certificate if isinstance(certificate, Certificate) else Certificate.load(certificate)
        verify_certificate(model, found)
        promised = (found.lower.clone(), found.upper.clone())
    serving = copied(model).eval()
    batches = Batches(data, serving)
    seen: dict[str, FeatureStatistics] = {}
    outputs: list[FeatureStatistics | None] = []
    with untouched(serving):  # buffers that a call moves are as they were given
        batches.check()
        per_row = _per_row(serving, batches.some())
        for call in batches:
            for name, tensor in floating(call).items():
                seen.setdefault(str(name), FeatureStatistics()).add(_featured(tensor))
            for number, tensor in enumerate(output_tensors(run(serving, call))):
                if number == len(outputs):
                    outputs.append(FeatureStatistics() if per_row[number] else None)
                if (one := outputs[number]) is not None:
                    one.add(tensor, of_model=True)
    if not seen:
        raise InvalidValueError("A guard watches real-valued inputs, and data holds none.")
    sizes = {name: UpperQuantile() for name in seen}
    likes: dict[str, Tensor] = {}
    for call in batches:
        for key, tensor in floating(call).items():
            name = str(key)
            likes.setdefault(name, tensor.cpu())
            away = (_featured(tensor).cpu().double() - seen[name].mean) / scale_of(seen[name])
            size = torch.linalg.vector_norm(away, 2, cap_axes(tensor))
            sizes[name].add(flat_rows(size).amax(-1))
    share = 1.0 - (1.0 - keep) / len(seen)
    limits = {name: InputLimits(seen[name], sizes[name], share, likes[name]) for name in seen}
    # A row of zeros, to export with: none of the calibration rows go into what is saved.
    like = map_call(batches.first(), lambda _, tensor: torch.zeros_like(tensor))
    made = Guard(serving, limits, outputs, on_outside, fallback, promised, like, batches.columns).eval()
    home = device_of(serving)
    return made if home is None else made.to(home)


def _featured(rows: Tensor) -> Tensor:
    """Rows of one number, without an axis, are rows of one feature."""
    return rows[:, None] if rows.ndim == 1 else rows


def _per_row(model: nn.Module, call: Call) -> list[bool]:
    """Which outputs are real numbers with a row for each row: their length follows that of the batch.

    A recurrent state has its layers in front, and may have as many as there are rows.
    """
    found: list[list[int]] = []
    for rows in (2, 3):
        given = map_call(call, partial(_repeated, rows=rows))
        try:
            outputs = output_tensors(run(model, given))
        except Exception:  # a model for batches of one size; whatever it runs into
            outputs, rows = output_tensors(run(model, call)), rows_of(call)
        found.append([len(t) - rows if t.ndim and t.is_floating_point() else -1 for t in outputs])
    return [first == second == 0 for first, second in zip(*found, strict=True)]


def _repeated(name: int | str, tensor: Tensor, rows: int) -> Tensor:
    return tensor[:1].expand(rows, *tensor.shape[1:])
