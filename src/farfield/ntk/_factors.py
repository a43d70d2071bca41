"""Per-input gradients in factored form: one forward pass and one backward pass for each output, for a batch of
inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap
from torch.nn import functional as F  # noqa: N812
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import CheckpointError

from farfield.errors import FarfieldError, InvalidValueError
from farfield.ntk._calls import ParameterCall, TrackedParameters
from farfield.ntk._plan import CallPlan, Select, as_batch
from farfield.ntk._record import Recorder
from farfield.ntk._transforms import dense, transforms
from farfield.ntk._whole import WholePass

__all__ = ["Factors", "FullGradients", "Gradients", "Outer"]


@dataclass(frozen=True)
class Outer:
    """Gradients of a matrix parameter as sums of outer products: G = Σ_t left_t ⊗ right_t, for each of g blocks.

    Shapes (n, K or 1, g, T, p) and (n, K or 1, g, T, q): the axis of size 1 is the side that is the same for
    all outputs.

    Parameters
    ----------
    left, right
        The factors.
    ones
        Which side has one more column, of ones, that is not stored: the gradient of a bias.
    """

    left: Tensor
    right: Tensor
    ones: Literal["left", "right"] | None = None

    def __getitem__(self, rows: slice) -> Outer:
        """The factors of some of the inputs."""
        return Outer(self.left[rows], self.right[rows], self.ones)


@dataclass(frozen=True)
class FullGradients:
    """Gradients of a parameter as they are: shape (n, K, size)."""

    value: Tensor


Factors = dict[str, list[Outer | FullGradients]]
"""For every parameter the terms its gradient is the sum of. A bias may be counted with its weight, as one more
column."""


def _run(
    model: nn.Module,
    tracked: TrackedParameters,
    opaque: set[str],
    select: Select,
    perturbations: tuple[Tensor, ...] | None,
    substitutes: dict[str, Tensor],
    z: Tensor,
) -> tuple[Tensor, Recorder]:
    recorder = Recorder(tracked, perturbations, set(opaque))
    with recorder:
        y = tracked.substitute(model, substitutes, z.unsqueeze(0))
    return select(y), recorder


def _zeros(found: CallPlan) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(s, dtype=t, device=d) for s, t, d in found.shapes)


def _check(found: CallPlan, recorder: Recorder) -> None:
    if tuple(recorder.calls) != found.calls:
        raise InvalidValueError(
            "The layerwise method needs a model that makes the same calls for every input, and this one does "
            "not (its control "
            "flow depends on the data). Use method='jacobian'."
        )


Pieces = tuple[tuple[Tensor, ...], dict[str, Tensor], list[Tensor | None]]
"""Derivatives by the perturbations, by the opaque parameters, and the calls' inputs; each with leading axes (n,
K) or (n,)."""


def _forward(model: nn.Module, tracked: TrackedParameters, x: Tensor) -> tuple[Any, Recorder]:
    """A recorded run on a batch; where the model works in place, once more on copies."""
    for copy in (False, True):
        recorder = Recorder(tracked, None, set(), keep=True, copy=copy)
        with recorder:
            y = tracked.substitute(model, {}, x)
        if recorder.untouched():
            break
    return y, recorder


def _batched(
    model: nn.Module,
    tracked: TrackedParameters,
    select: Select,
    found: CallPlan,
    x: Tensor,
    run: WholePass | None = None,
) -> Pieces | None:
    """One ordinary forward pass of the batch and one backward pass an output; None where that can't be trusted.

    It can where every call's output had one row for one input and has n for n, and the plan has seen row i to belong
    to input i.
    """
    if found.opaque or found.moved:
        return None
    done = None if run is None else run.take(x)
    with torch.enable_grad():
        y, recorder = _forward(model, tracked, x) if done is None else done
        if not as_batch(found, recorder, y, len(x)):
            return None
        rows = (
            torch.stack([select(row.unsqueeze(0)) for row in y])
            if found.outputs > 1
            else _row_sums(select, y)
        )
        columns = [
            torch.autograd.grad(
                rows[:, k].sum(),
                recorder.kept,
                retain_graph=k + 1 < found.outputs,
                allow_unused=True,
                materialize_grads=True,
            )
            for k in range(found.outputs)
        ]
    if len(columns) == 1:
        derivatives = tuple(part[:, None, None] for part in columns[0])  # nothing to put together
    else:
        derivatives = tuple(torch.stack(parts, 1).unsqueeze(2) for parts in zip(*columns, strict=True))
    kept = [None if v is None else v.detach().unsqueeze(1) for v in recorder.inputs]
    return derivatives, {}, kept


def _row_sums(select: Select, y: Tensor) -> Tensor:
    """The one output of every input, (n, 1)."""
    if y.numel() == len(y):
        return y.reshape(-1, 1)
    return torch.stack([select(row.unsqueeze(0)) for row in y])


def _vectorized(
    model: nn.Module, tracked: TrackedParameters, select: Select, found: CallPlan, x: Tensor
) -> Pieces:
    substitutes = {name: tracked.parameters[name].detach() for name in found.opaque}
    present: list[bool] = []

    def one(
        perturbations: tuple[Tensor, ...], opaque: dict[str, Tensor], z: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        y, recorder = _run(model, tracked, set(found.opaque), select, perturbations, opaque, z)
        _check(found, recorder)
        present[:] = [value is not None for value in recorder.inputs]
        return y, tuple(value for value in recorder.inputs if value is not None)

    arguments = (_zeros(found), substitutes, x)
    with transforms():
        if found.outputs == 1:  # one backward pass needs no basis of output directions
            scalar = grad(_scalar(one), argnums=(0, 1), has_aux=True)
            derivatives, kept = vmap(scalar, (None, None, 0))(*arguments)
            derivatives = tree_map(lambda t: t.unsqueeze(1), derivatives)
        else:
            derivatives, kept = vmap(jacrev(one, argnums=(0, 1), has_aux=True), (None, None, 0))(*arguments)
    values = iter(kept)
    return derivatives[0], derivatives[1], [next(values) if there else None for there in present]


def _scalar(one: Callable[..., tuple[Tensor, Any]]) -> Callable[..., tuple[Tensor, Any]]:
    def number(*arguments: Any) -> tuple[Tensor, Any]:
        y, kept = one(*arguments)
        return y.reshape(()), kept

    return number


def _one_by_one(
    model: nn.Module, tracked: TrackedParameters, select: Select, found: CallPlan, x: Tensor
) -> Pieces:
    rows: list[Pieces] = []
    names = found.opaque
    for z in x:
        with torch.enable_grad():
            perturbations = tuple(p.requires_grad_() for p in _zeros(found))
            substitutes = {name: tracked.parameters[name].detach().requires_grad_() for name in names}
            y, recorder = _run(model, tracked, set(names), select, perturbations, substitutes, z)
            _check(found, recorder)
            wanted = (*perturbations, *substitutes.values())
            grads = [
                torch.autograd.grad(v, wanted, retain_graph=True, allow_unused=True, materialize_grads=True)
                for v in y.reshape(-1)
            ]
        stacked = [torch.stack([dense(v) for v in g]) for g in zip(*grads, strict=True)]
        rows.append(
            (
                tuple(stacked[: len(perturbations)]),
                dict(zip(names, stacked[len(perturbations) :], strict=True)),
                [None if v is None else v.detach() for v in recorder.inputs],
            )
        )
    count = len(found.calls)
    return (
        tuple(torch.stack([r[0][k] for r in rows]) for k in range(count)),
        {name: torch.stack([r[1][name] for r in rows]) for name in names},
        [
            None if rows[0][2][k] is None else torch.stack([r[2][k] for r in rows])  # type: ignore[misc]
            for k in range(count)
        ],
    )


@dataclass(frozen=True)
class Gradients:
    """A model's per-input gradients, in factored form: called with a batch of inputs.

    Parameters
    ----------
    model, tracked, select
        The model, the parameters that count, and the outputs that do.
    plan
        How the model uses those parameters.
    run
        A run on all inputs, if there was one.
    """

    model: nn.Module
    tracked: TrackedParameters
    select: Select
    plan: CallPlan
    run: WholePass | None = None

    def __call__(self, x: Tensor) -> Factors:
        """Gradients of the K outputs for every input."""
        if not self.plan.calls and not self.plan.opaque:
            return {}
        derivatives, opaque, inputs = self._pieces(x)
        single, dtype = (
            _used_once(self.plan),
            self.tracked.dtype,
        )  # layers may differ in it, or be cast by autocast
        result: Factors = {}
        for name, value in opaque.items():
            result.setdefault(name, []).append(
                FullGradients(value.detach().reshape(*value.shape[:2], -1).to(dtype))
            )
        for call, derivative, given in zip(self.plan.calls, derivatives, inputs, strict=True):
            if given is not None and given.is_floating_point():
                given = given.to(dtype)
            for name, term in _terms(call, derivative.detach().to(dtype), given, single):
                result.setdefault(name, []).append(term)
        return result

    def zeros(self, shape: tuple[int, ...]) -> Tensor:
        """A kernel of nothing."""
        return next(iter(self.tracked.parameters.values())).new_zeros(shape, dtype=self.tracked.dtype)

    def _pieces(self, x: Tensor) -> Pieces:
        arguments = (self.model, self.tracked, self.select, self.plan, x)
        if self.__dict__.get("_alone"):
            return _one_by_one(*arguments)
        if not self.__dict__.get("_mixed"):
            pieces = _batched(*arguments, self.run)
            if pieces is not None:
                return pieces
            self.__dict__["_mixed"] = True
        try:
            return _vectorized(*arguments)
        except FarfieldError:
            raise
        except RuntimeError:
            # Whatever vmap can't do: control flow on data, an operator without a batching rule. Exact all the
            # same, input by input. A model that is wrong in itself fails there too, with its own error.
            self.__dict__["_alone"] = True
            try:
                return _one_by_one(*arguments)
            except CheckpointError as error:
                raise InvalidValueError(
                    "The layerwise method takes a layer apart while it records it, and torch.utils.checkpoint then "
                    "finds another graph when it runs the layer again. Switch checkpointing off, or use "
                    "method='jacobian'."
                ) from error


def _used_once(found: CallPlan) -> set[str]:
    counts: dict[str, int] = {}
    for call in found.calls:
        for name in (call.weight, call.bias):
            if name is not None:
                counts[name] = counts.get(name, 0) + 1
    return {name for name, count in counts.items() if count == 1}


def _terms(
    call: ParameterCall, g: Tensor, x: Tensor | None, single: set[str]
) -> list[tuple[str, Outer | FullGradients]]:
    """The contributions of one call; g has shape (n, K, *output), x has (n, *input)."""
    if call.kind in ("linear", "transposed", "convolution"):
        return _matrix_terms(call, g, x, single)
    if call.kind == "embedding":
        assert x is not None
        assert call.weight is not None
        return [(call.weight, _embedding_term(call, _times(g, call.factors[0]), x))]
    terms: list[tuple[str, Outer | FullGradients]] = []
    shape = call.option("shape")
    if call.weight is not None:
        assert x is not None
        aligned = x.reshape(len(x), *(1,) * (g.dim() - x.dim()), *x.shape[1:])  # as broadcasting aligned it
        terms.append((call.weight, FullGradients(_times(_summed(g * aligned, shape), call.factors[0]))))
    if call.bias is not None:
        terms.append((call.bias, FullGradients(_times(_summed(g, shape), call.factors[1]))))
    return terms


def _times(value: Tensor, factor: float) -> Tensor:
    return value if factor == 1.0 else value * factor


def _summed(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Σ over the axes a parameter was broadcast along: (n, K, *output) → (n, K, size)."""
    rank = g.dim() - 2
    padded = (1,) * (rank - len(shape)) + tuple(shape)
    axes = [2 + k for k, size in enumerate(padded) if size == 1 and g.shape[2 + k] != 1]
    return (g.sum(axes) if axes else g).flatten(2)


def _matrix_terms(
    call: ParameterCall, g: Tensor, x: Tensor | None, single: set[str]
) -> list[tuple[str, Outer | FullGradients]]:
    if x is None:
        assert call.bias is not None
        channels = -1 if call.kind != "convolution" else -call.option("dimension") - 1
        others = [axis for axis in range(2, g.dim()) if axis != g.dim() + channels]
        return [(call.bias, FullGradients(_times(g.sum(others) if others else g, call.factors[1])))]
    if call.kind == "convolution":
        patches, b = _patches(call, g, x)
    else:
        patches = x.reshape(len(x), 1, 1, -1, x.shape[-1])
        b = g.reshape(len(g), g.shape[1], 1, -1, g.shape[-1])
    # One more column of ones counts the bias with the weight, at no cost; only where neither is used elsewhere.
    joined = call.weight in single and call.bias in single and call.factors[0] == call.factors[1]
    terms: list[tuple[str, Outer | FullGradients]] = []
    if call.weight is not None:
        scaled = _times(b, call.factors[0])
        if call.kind == "transposed":
            terms.append((call.weight, Outer(patches, scaled, "left" if joined else None)))
        else:
            terms.append((call.weight, Outer(scaled, patches, "right" if joined else None)))
    if call.bias is not None and not joined:
        terms.append((call.bias, FullGradients(_times(b.sum(3).flatten(2), call.factors[1]))))
    return terms


def _patches(call: ParameterCall, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A convolution as a matrix product at each of T places: (n, 1, groups, T, p) and (n, K, groups, T, q)."""
    groups, dimension = call.option("groups"), call.option("dimension")
    # The layer was given a batch of one, of none, or of several pictures for one input: more places.
    n, outputs = g.shape[:2]
    x = x.reshape(-1, *x.shape[-dimension - 1 :])
    g = g.reshape(n, outputs, -1, *g.shape[-dimension - 1 :])
    pictures = g.shape[2]
    options = {k: call.option(k) for k in ("kernel", "stride", "padding", "dilation")}
    if dimension == 1:
        x, g = x.unsqueeze(-2), g.unsqueeze(-2)
        fill = {"kernel": 1, "stride": 1, "padding": 0, "dilation": 1}
        options = {k: (fill[k], *v) for k, v in options.items()}
    unfolded = F.unfold(
        x,
        options["kernel"],
        dilation=options["dilation"],
        padding=options["padding"],
        stride=options["stride"],
    )
    # (n, pictures, groups, p, T) → (n, 1, groups, pictures · T, p)
    patches = unfolded.reshape(n, pictures, groups, -1, unfolded.shape[-1])
    patches = patches.permute(0, 2, 1, 4, 3).flatten(2, 3).unsqueeze(1)
    b = g.reshape(n, outputs, pictures, groups, g.shape[3] // groups, -1)
    b = b.permute(0, 1, 3, 2, 5, 4).flatten(3, 4)
    return patches, b


def _embedding_term(call: ParameterCall, g: Tensor, index: Tensor) -> Outer:
    """Row numbers as unit vectors, so that an embedding tied to a Linear meets it in the same form."""
    flat = index.reshape(len(index), 1, 1, -1)
    units = F.one_hot(flat, call.option("rows")).to(g.dtype)
    padding = call.option("padding")
    if padding is not None:
        units = units * (flat != padding).unsqueeze(-1)
    return Outer(units, g.reshape(len(g), g.shape[1], 1, -1, g.shape[-1]))
