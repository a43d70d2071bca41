"""A model evaluated in real arithmetic: its exported graph over mpmath numbers, sixty digits, without farfield.

Casts between floating types change nothing there, casts to integers cut. It decides where float64 comes close.
"""

from __future__ import annotations

import itertools
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
import torch
from torch import Tensor, fx, nn

__all__ = ["Exact", "MissingOperatorError", "array", "mp"]

mp = mpmath.mp.clone()
mp.dps = 60
Array = np.ndarray[Any, Any]
TABLE: dict[str, Callable[..., Any]] = {}


class _Names:
    """``aten.x`` is "x": some names are not operators of every version."""

    def __getattr__(self, name: str) -> str:
        return name


aten: Any = _Names()


class MissingOperatorError(NotImplementedError):
    """The interpreter does not know an operator."""


def rule(*targets: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register for operators, all overloads of each."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for target in targets:
            TABLE[target] = function
        return function

    return register


def number(value: Any) -> Any:
    """An exact mpmath number from a Python or numpy one."""
    return (
        value
        if isinstance(value, mp.mpf)
        else mp.mpf(float(value))
        if not isinstance(value, int | np.integer)
        else mp.mpf(int(value))
    )


def array(x: Any) -> Array:
    """As an array of mpmath numbers."""
    if isinstance(x, Tensor):
        x = x.detach().numpy()
    if isinstance(x, np.ndarray) and x.dtype == object:
        return x
    x = np.asarray(x, dtype=object if not isinstance(x, np.ndarray) else None)
    made = np.empty(x.shape, dtype=object)
    made.reshape(-1)[:] = [number(v) for v in x.reshape(-1)]
    return made


def mapped(function: Callable[..., Any]) -> Callable[..., Array]:
    """Entry by entry over mpmath numbers, with broadcasting; further arguments are dropped."""

    def over(*xs: Any) -> Array:
        arrays = np.broadcast_arrays(*(array(x) for x in xs))
        made = np.empty(arrays[0].shape, dtype=object)
        made.reshape(-1)[:] = [
            function(*entries) for entries in zip(*(a.reshape(-1) for a in arrays), strict=True)
        ]
        return made

    return over


def _floating(x: Any) -> bool:
    return isinstance(x, float) or (isinstance(x, np.ndarray) and x.dtype == object)


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Integers stay integers, anything with a real number is exact."""

    def apply(a: Any, b: Any, **_: Any) -> Any:
        if _floating(a) or _floating(b):
            return function(array(a), array(b))
        return np.asarray(function(np.asarray(a), np.asarray(b)))

    return apply


def _add(a: Any, b: Any, alpha: Any = 1) -> Any:
    return _arithmetic(operator.add)(a, b if alpha == 1 else _arithmetic(operator.mul)(b, alpha))


TABLE[aten.add] = _add
TABLE[aten.sub] = lambda a, b, alpha=1: _add(a, b, -alpha)
TABLE[aten.rsub] = lambda a, b, alpha=1: _add(b, a, -alpha)
TABLE[aten.mul] = _arithmetic(operator.mul)


@rule(aten.div)
def divide(a: Any, b: Any, rounding_mode: str | None = None) -> Array:
    cut = {None: lambda q: q, "floor": mp.floor, "trunc": _trunc}[rounding_mode]
    return mapped(lambda p, q: cut(p / q))(a, b)


def _trunc(v: Any) -> Any:
    return mp.floor(v) if v >= 0 else mp.ceil(v)


def _half_even(v: Any) -> Any:
    return mp.nint(v)


def _sigmoid(v: Any) -> Any:
    return 1 / (1 + mp.exp(-v)) if v >= 0 else 1 - 1 / (1 + mp.exp(v))


def _softplus(v: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    w = beta * v
    return (max(w, mp.zero) + mp.log1p(mp.exp(-abs(w)))) / beta


def _tanh(v: Any) -> Any:
    return mp.sign(v) * (1 - 2 / (1 + mp.exp(2 * abs(v))))


def _gelu_tanh(v: Any) -> Any:
    return v / 2 * (1 + _tanh(mp.sqrt(2 / mp.pi) * (v + mp.mpf(0.044715) * v**3)))


def _elu(v: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    return scale * (v if v > 0 else alpha * mp.expm1(input_scale * v))


ENTRYWISE: dict[Any, Callable[..., Any]] = {
    aten.neg: lambda v: -v, aten.abs: abs, aten.exp: mp.exp, aten.expm1: mp.expm1, aten.log: mp.log,
    aten.log1p: mp.log1p, aten.sqrt: mp.sqrt, aten.rsqrt: lambda v: 1 / mp.sqrt(v),
    aten.reciprocal: lambda v: 1 / v, aten.sin: mp.sin, aten.cos: mp.cos, aten.atan: mp.atan,
    aten.asinh: mp.asinh, aten.erf: mp.erf, aten.sign: mp.sign, aten.sgn: mp.sign, aten.floor: mp.floor,
    aten.ceil: mp.ceil, aten.trunc: _trunc, aten.round: _half_even, aten.sigmoid: _sigmoid,
    aten.tanh: _tanh, aten.relu: lambda v: max(v, mp.zero),
    aten.leaky_relu: lambda v, s=0.01: v if v > 0 else s * v, aten.square: lambda v: v * v,
    aten.softplus: _softplus, aten.silu: lambda v: v * _sigmoid(v),
    aten.mish: lambda v: v * _tanh(_softplus(v)),
    aten.hardtanh: lambda v, lo=-mp.one, hi=mp.one: min(max(v, lo), hi), aten.elu: _elu,
    aten.log_sigmoid_forward: lambda v: -_softplus(-v),
    aten.hardsigmoid: lambda v: min(max(v + 3, mp.zero), mp.mpf(6)) / 6,
    aten.hardswish: lambda v: v * min(max(v + 3, mp.zero), mp.mpf(6)) / 6, aten.maximum: max,
    aten.minimum: min, aten.atan2: mp.atan2, aten.hypot: lambda a, b: mp.sqrt(a * a + b * b),
    aten.remainder: lambda a, b: a - b * mp.floor(a / b), aten.fmod: lambda a, b: a - b * _trunc(a / b),
    aten.frac: lambda v: v - _trunc(v), aten.floor_divide: lambda a, b: mp.floor(a / b),
    aten.nan_to_num: lambda v, *_: v, aten.exp2: lambda v: mp.mpf(2) ** v,
    aten.softshrink: lambda v, l=0.5: v - l if v > l else v + l if v < -l else mp.zero,
    aten.log_sigmoid: lambda v: -_softplus(-v),
    aten.selu: lambda v: _elu(v, mp.mpf(1.6732632423543772), mp.mpf(1.0507009873554805)),
    aten.relu6: lambda v: min(max(v, mp.zero), mp.mpf(6)),
    aten.celu: lambda v, a=mp.one: v if v > 0 else a * mp.expm1(v / a),
    aten.tanhshrink: lambda v: v - _tanh(v), aten.softsign: lambda v: v / (1 + abs(v)),
}  # fmt: skip
for _target, _function in ENTRYWISE.items():
    TABLE[_target] = mapped(_function)


@rule(aten.gelu)
def gelu(x: Array, approximate: str = "none") -> Array:
    return mapped(_gelu_tanh if approximate == "tanh" else lambda v: v * mp.erfc(-v / mp.sqrt(2)) / 2)(x)


@rule(aten.pow)
def power(a: Any, b: Any) -> Array:
    return mapped(lambda p, q: p ** int(q) if q == int(q) else mp.power(p, q))(a, b)


@rule(aten.clamp, aten.clamp_min, aten.clamp_max)
def clamp(x: Array, lo: Any = None, hi: Any = None) -> Array:
    x = x if lo is None else mapped(max)(x, lo)
    return x if hi is None else mapped(min)(x, hi)


TABLE[aten.clamp_max] = lambda x, hi: clamp(x, None, hi)


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Array]:
    return lambda a, b: np.asarray(compare(array(a), array(b)), dtype=bool)


for _name in ("gt", "lt", "ge", "le", "eq", "ne"):
    TABLE[_name] = _comparison(getattr(operator, _name))
TABLE[aten.logical_not] = TABLE[aten.bitwise_not] = lambda a: np.logical_not(boolean(a))
TABLE[aten.logical_and] = TABLE[aten.bitwise_and] = lambda a, b: boolean(a) & boolean(b)
TABLE[aten.logical_or] = TABLE[aten.bitwise_or] = lambda a, b: boolean(a) | boolean(b)
TABLE[aten.isnan] = TABLE[aten.isinf] = lambda a: np.zeros(np.shape(a), dtype=bool)


def boolean(x: Any) -> Array:
    return np.asarray(x != 0 if not isinstance(x, np.ndarray) or x.dtype != bool else x, dtype=bool)


@rule(aten.where)
def where(mask: Array, a: Any, b: Any) -> Array:
    return np.where(mask, array(a), array(b))


@rule(aten.masked_fill)
def masked_fill(x: Array, mask: Array, value: Any) -> Array:
    return np.where(mask, array(value), array(x))


@rule(aten._to_copy, aten.to, aten.type_as)
def cast(x: Any, *rest: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    dtype = next((r for r in rest if isinstance(r, torch.dtype)), dtype)
    if dtype is None:
        return x
    if dtype == torch.bool:
        return boolean(x)
    if dtype.is_floating_point:
        return array(x)
    if isinstance(x, np.ndarray) and x.dtype == object:
        return np.vectorize(lambda v: int(_trunc(v)), otypes=[np.int64])(x)
    return np.asarray(x).astype(np.int64)


def places(i: Any) -> Array:
    """Indices, whatever arithmetic they went through."""
    return i if i.dtype == bool else i.astype(np.int64)


# ------------------------------------------------------------------ shapes

TABLE[aten.view] = TABLE[aten.reshape] = TABLE[aten._unsafe_view] = TABLE[aten._reshape_copy] = lambda x, s: (
    x.reshape(s)
)
TABLE[aten.permute] = lambda x, d: x.transpose(d)
TABLE[aten.transpose] = lambda x, a, b: np.swapaxes(x, a, b)
TABLE[aten.t] = lambda x: x.T
TABLE[aten.unsqueeze] = lambda x, d: np.expand_dims(x, d)
TABLE[aten.squeeze] = lambda x, d=None: np.squeeze(x, tuple(i for i in np.atleast_1d(d) if x.shape[i] == 1))
TABLE[aten.flip] = lambda x, d: np.flip(x, d)
TABLE[aten.roll] = lambda x, s, d: np.roll(x, s, d)
TABLE[aten.select] = lambda x, d, i: np.take(x, i, d)
TABLE[aten.cat] = lambda xs, d=0: (
    np.concatenate([array(x) for x in xs], d) if any(map(_floating, xs)) else np.concatenate(xs, d)
)
TABLE[aten.stack] = lambda xs, d=0: np.stack([array(x) for x in xs], d)
TABLE[aten.repeat] = lambda x, r: np.tile(x, r)
TABLE[aten.index_select] = lambda x, d, i: np.take(x, places(i), d)
TABLE[aten.unbind] = lambda x, d=0: [np.take(x, i, d) for i in range(x.shape[d])]
TABLE[aten.gather] = lambda x, d, i: np.take_along_axis(x, places(i), d)
for _name in (
    "clone",
    "alias",
    "detach",
    "lift_fresh_copy",
    "contiguous",
    "dropout",
    "_assert_tensor_metadata",
):
    TABLE[getattr(aten, _name)] = lambda x, *_, **__: x


@rule(aten.expand)
def expand(x: Array, shape: Sequence[int], **_: Any) -> Array:
    lead = len(shape) - x.ndim
    return np.broadcast_to(x, [x.shape[i - lead] if s == -1 else s for i, s in enumerate(shape)])


@rule(aten.slice)
def cut(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


@rule(aten.split_with_sizes, aten.split)
def split(x: Array, sizes: Any, dim: int = 0) -> list[Array]:
    if isinstance(sizes, int):
        return np.split(x, range(sizes, x.shape[dim], sizes), dim)
    return np.split(x, np.cumsum(sizes)[:-1], dim)


@rule(aten.index)
def index(x: Array, indices: Sequence[Any]) -> Array:
    return x[tuple(slice(None) if i is None else places(i) for i in indices)]


def _full(shape: Sequence[int], value: Any, dtype: Any = None, **_: Any) -> Any:
    return cast(np.broadcast_to(array(value), shape).copy(), dtype=dtype)


TABLE[aten.full] = _full
TABLE[aten.full_like] = lambda x, value, dtype=None, **_: _full(x.shape, value, dtype)
TABLE[aten.ones_like] = lambda x, **_: _full(x.shape, 1)
TABLE[aten.zeros_like] = lambda x, **_: _full(x.shape, 0)
TABLE[aten.scalar_tensor] = lambda v, **k: _full((), v, k.get("dtype"))
TABLE[aten.new_full] = lambda x, shape, v, **k: _full(shape, v)


TABLE[aten.arange] = lambda *a, **k: plain(torch.arange(*a, **k))
TABLE[aten.linspace] = lambda *a, **k: plain(torch.linspace(*a, **k))


def plain(t: Tensor) -> Any:
    """A tensor as the interpreter holds it: integers and booleans in numpy, the rest in mpmath."""
    return array(t) if t.is_floating_point() else t.detach().numpy()


# ------------------------------------------------------------------ reductions


def _axes(x: Array, dim: Any) -> tuple[int, ...]:
    return (
        tuple(range(x.ndim))
        if dim is None or dim == []
        else tuple(int(d) % x.ndim for d in np.atleast_1d(dim))
    )


@rule(aten.sum)
def total(x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    x = x if x.dtype == object else x.astype(np.int64)
    return np.asarray(x.sum(axis=_axes(x, dim), keepdims=keepdim))


@rule(aten.mean)
def mean(x: Array, dim: Any = None, keepdim: bool = False, **_: Any) -> Array:
    return np.asarray(total(x, dim, keepdim)) / math.prod(x.shape[d] for d in _axes(x, dim))


@rule(aten.amax)
def amax(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return np.asarray(x.max(axis=_axes(x, dim), keepdims=keepdim))


@rule(aten.amin)
def amin(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return -amax(-x, dim, keepdim)


TABLE[aten.prod] = lambda x, dim=None, keepdim=False, **_: np.asarray(
    np.multiply.reduce(x, dim, keepdims=keepdim)
)
TABLE[aten.argmax] = lambda x, dim=None, keepdim=False: np.asarray(np.argmax(x, dim, keepdims=keepdim))
TABLE[aten.max] = lambda x, dim, keepdim=False: (amax(x, dim, keepdim), np.argmax(x, dim, keepdims=keepdim))
TABLE[aten.min] = lambda x, dim, keepdim=False: (amin(x, dim, keepdim), np.argmin(x, dim, keepdims=keepdim))
TABLE[aten.any] = lambda x, dim=None, keepdim=False: np.asarray(boolean(x).any(dim, keepdims=keepdim))
TABLE[aten.cumsum] = lambda x, dim, **_: np.cumsum(x, dim)
TABLE[aten.cummax] = lambda x, dim: (np.maximum.accumulate(x, dim), None)


@rule(aten.var)
def variance(x: Array, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Array:
    count = math.prod(x.shape[d] for d in _axes(x, dim))
    spread = x - mean(x, dim, True)
    return total(spread * spread, dim, keepdim) / number(count - (1 if correction is None else correction))


TABLE[aten.std] = lambda *a, **k: mapped(mp.sqrt)(variance(*a, **k))
TABLE[aten.var_mean] = lambda x, dim=None, correction=1, keepdim=False: (
    variance(x, dim, correction, keepdim),
    mean(x, dim, keepdim),
)


@rule(aten.linalg_vector_norm, aten.norm)
def vector_norm(x: Array, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Array:  # noqa: A002
    assert ord is None or float(ord) == 2.0
    return mapped(mp.sqrt)(total(x * x, dim, keepdim))


@rule(aten.sort)
def sort(x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    order = np.argsort(-x if descending else x, axis=dim, kind="stable")
    return np.take_along_axis(x, order, dim), order


@rule(aten.topk)
def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:  # noqa: A002
    values, order = sort(x, dim, largest)
    return np.take(values, range(k), dim), np.take(order, range(k), dim)


@rule(aten._softmax, aten.softmax)
def softmax(x: Array, dim: int, *_: Any) -> Array:
    e = mapped(mp.exp)(x - amax(x, dim, True))
    return e / total(e, dim, True)


@rule(aten._log_softmax, aten.log_softmax)
def log_softmax(x: Array, dim: int, *_: Any) -> Array:
    y = x - amax(x, dim, True)
    return y - mapped(mp.log)(total(mapped(mp.exp)(y), dim, True))


@rule(aten.logsumexp)
def logsumexp(x: Array, dim: Any, keepdim: bool = False) -> Array:
    top = amax(x, dim, True)
    result = top + mapped(mp.log)(total(mapped(mp.exp)(x - top), dim, True))
    return result if keepdim else np.squeeze(result, _axes(x, dim))


# ------------------------------------------------------------------ layers

TABLE[aten.mm] = TABLE[aten.bmm] = TABLE[aten.matmul] = TABLE[aten.mv] = TABLE[aten.dot] = lambda a, b: (
    array(a) @ array(b)
)
TABLE[aten.addmm] = lambda c, a, b, **_: array(c) + array(a) @ array(b)
TABLE[aten.baddbmm] = TABLE[aten.addmm]
TABLE[aten.linear] = lambda x, w, b=None: x @ w.T + (0 if b is None else b)


def _affine(y: Array, weight: Any, bias: Any, shape: Sequence[int]) -> Array:
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def _standard(x: Array, axes: Any, norm_eps: float) -> Array:
    return (x - mean(x, axes, True)) / mapped(mp.sqrt)(variance(x, axes, 0, True) + number(norm_eps))


@rule(aten.native_layer_norm, aten.layer_norm)
def layer_norm(
    x: Array, shape: Sequence[int], weight: Any = None, bias: Any = None, norm_eps: float = 1e-5, *_: Any
) -> Any:
    return _affine(_standard(x, list(range(-len(shape), 0)), norm_eps), weight, bias, shape), None, None


@rule(aten.native_group_norm)
def group_norm(
    x: Array, weight: Any, bias: Any, n: int, c: int, rest: int, groups: int, norm_eps: float
) -> Any:
    y = _standard(x.reshape(n, groups, -1), [2], norm_eps).reshape(x.shape)
    return _affine(y, weight, bias, [1, c] + [1] * (x.ndim - 2)), None, None


@rule(aten._native_batch_norm_legit_no_training)
def batch_norm(x: Array, weight: Any, bias: Any, m: Array, v: Array, momentum: float, norm_eps: float) -> Any:
    shape = [1, x.shape[1]] + [1] * (x.ndim - 2)
    y = (x - m.reshape(shape)) / mapped(mp.sqrt)(v + number(norm_eps)).reshape(shape)
    return _affine(y, weight, bias, shape), None, None


@rule(aten._native_batch_norm_legit)
def instance_norm(x: Array, weight: Any, bias: Any, training: bool, momentum: float, norm_eps: float) -> Any:
    assert training
    y = _standard(x, [0, *range(2, x.ndim)], norm_eps)
    return _affine(y, weight, bias, [1, x.shape[1]] + [1] * (x.ndim - 2)), None, None


def _windows(
    x: Array, size: Sequence[int], stride: Sequence[int], pad: Sequence[int], empty: Any
) -> tuple[Array, tuple[int, ...]]:
    """Windows over the last axes, as one last axis; places in the padding hold ``empty``."""
    k = len(size)
    stride = list(stride) or list(size)
    pad = list(pad) * (k if len(pad) == 1 else 1)
    padded = np.pad(x, [(0, 0)] * (x.ndim - k) + [(p, p) for p in pad], constant_values=empty)
    out = tuple((n - s) // t + 1 for n, s, t in zip(padded.shape[-k:], size, stride, strict=True))
    places = []
    for offset in itertools.product(*(range(s) for s in size)):
        cuts = tuple(slice(o, o + t * (n - 1) + 1, t) for o, t, n in zip(offset, stride, out, strict=True))
        places.append(padded[(..., *cuts)])
    return np.stack(places, -1), out


@rule(aten.max_pool2d_with_indices)
def max_pool(x: Array, size: Any, stride: Any = (), pad: Any = (0,), *_: Any) -> Any:
    return _windows(x, size, stride, pad, -mp.inf)[0].max(-1), None


@rule(aten.avg_pool2d, aten.avg_pool1d)
def avg_pool(x: Array, size: Any, stride: Any = (), pad: Any = (0,), *_: Any) -> Array:
    return np.asarray(_windows(x, size, stride, pad, mp.zero)[0].sum(-1)) / math.prod(size)


@rule(aten.convolution)
def convolution(
    x: Array, w: Array, b: Any, stride: Any, pad: Any, dilation: Any, flipped: bool, extra: Any, groups: int
) -> Array:
    assert groups == 1 and not flipped and set(dilation) == {1}
    seen, _ = _windows(x, w.shape[2:], stride, pad, mp.zero)
    seen = np.moveaxis(seen, 1, -2)
    y = seen.reshape(*seen.shape[:-2], -1) @ w.reshape(w.shape[0], -1).T
    return np.moveaxis(y if b is None else y + b, -1, 1)


# ------------------------------------------------------------------ the interpreter


class Exact:
    """One row of a model, exactly: ``Exact(model, inputs)(x, …)`` gives mpmath numbers, flat; None for no number."""

    def __init__(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its own internals
            exported = torch.export.export(model, inputs).run_decompositions()
        self._signature = exported.graph_signature
        self._graph: fx.Graph = exported.graph
        self._held = {**exported.state_dict, **exported.constants}

    def __call__(self, *inputs: Any) -> list[Any] | None:
        """The output at one row; inputs are tensors, or arrays of mpmath numbers, with a batch axis of 1."""
        values: dict[fx.Node, Any] = {}
        given = iter(inputs)
        named = {
            **self._signature.inputs_to_parameters,
            **self._signature.inputs_to_buffers,
            **self._signature.inputs_to_lifted_tensor_constants,
        }
        for node in self._graph.nodes:
            if node.op == "placeholder":
                held = named.get(node.name)
                value = next(given) if held is None else self._held[held]
                values[node] = plain(value) if isinstance(value, Tensor) else value
            elif node.op == "output":
                result = node.args[0][0]
                return [number(v) for v in np.asarray(values[result]).reshape(-1)]
            else:
                try:
                    values[node] = self._call(node, values)
                except (ZeroDivisionError, OverflowError):
                    return None
        raise AssertionError("a graph ends with its output")

    def _call(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        if node.target is operator.getitem:
            source = values[node.args[0]]  # type: ignore[index]
            return source[node.args[1]]
        schema = getattr(node.target, "_schema", None)
        if schema is not None and not schema.returns and not schema.is_mutable:
            return None  # an assertion: it changes nothing
        function = TABLE.get(str(getattr(node.target, "overloadpacket", node.target)).removeprefix("aten."))
        if function is None:
            raise MissingOperatorError(f"no exact rule for {node.target}")
        args = fx.node.map_arg(node.args, lambda n: values[n])
        kwargs = {
            k: v
            for k, v in fx.node.map_arg(node.kwargs, lambda n: values[n]).items()
            if k not in ("device", "layout", "pin_memory", "memory_format", "non_blocking", "generator")
        }
        result = function(*args, **kwargs)
        if str(node.target) == "aten.layer_norm.default":
            return result[0]
        return np.asarray(result, dtype=object) if isinstance(result, mp.mpf) else result
