"""The checker's own reading of a program: between activations and norms it is affine.

Every value is a Rough array with one leading axis: row 0 is the constant part, row i the coefficient of variable i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from farfield.certify._check_activations import Activation, activation
from farfield.certify._check_values import (
    LARGEST,
    OVER,
    Array,
    CertificateError,
    Rough,
    U,
    gamma,
    over,
)
from farfield.graph import Node, Program, compute_node

__all__ = ["AVERAGES", "MOVING", "NORMS", "WEIGHTED", "Form", "Layer", "inverse_root", "layers", "sizes"]

_MOVING = """identity reshape permute expand repeat squeeze unsqueeze flip roll slice select diagonal cat stack split
    chunk unbind copy dropout pixel_shuffle pixel_unshuffle unfold tril triu getitem cast"""
MOVING = frozenset(_MOVING.split())
AVERAGES = frozenset(["sum", "mean", "avg_pool", "adaptive_avg_pool"])
WEIGHTED: Mapping[str, tuple[int, ...]] = {
    "linear": (0,),
    "conv": (0,),
    "conv_transpose": (0,),
    "matmul": (0, 1),
    "addmm": (1, 2),
}
NORMS = frozenset(["layer_norm", "rms_norm", "group_norm", "instance_norm", "l2_normalize"])


@dataclass(frozen=True)
class Form:
    """A value as constant + coefficients·variables: (1 + variables, *shape). Degree 1: the constant multiplies t."""

    value: Rough
    degree: int = 0

    @property
    def moving(self) -> bool:
        """Some variable enters."""
        return bool(self.value.mid.shape[0] > 1)

    def padded(self, rows: int) -> Rough:
        """With as many variables as asked for."""
        more = ((0, rows - self.value.mid.shape[0]), *((0, 0),) * (self.value.mid.ndim - 1))
        return Rough(np.pad(self.value.mid, more), np.pad(self.value.rad, more))

    def rows(self, start: int, stop: int) -> Rough:
        """Coefficients of some variables, one row per entry of the value."""
        flat = self.padded(max(stop, self.value.mid.shape[0]))
        count = flat.mid.shape[0]
        return Rough(flat.mid.reshape(count, -1)[start:stop].T, flat.rad.reshape(count, -1)[start:stop].T)


@dataclass(frozen=True)
class Layer:
    """Variables that are no affine function of earlier ones.

    ``kind`` is ``"input"`` (of ℝⁿ), ``"box"``, ``"curve"`` or ``"norm"``; ``columns`` are its rows in later forms.
    A norm is y = c/√(Σc²/count + ε) within each of its groups, c = z or z − mean (``centred``); ‖y‖ ≤ radius.
    """

    kind: str
    node: Node
    columns: slice
    argument: Form | None = None
    sigma: Activation | None = None
    groups: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    centred: bool = False
    count: float = 1.0
    eps: float | None = None

    @property
    def size(self) -> int:
        """How many variables."""
        return int(self.columns.stop - self.columns.start)

    @property
    def radius(self) -> float:
        """Largest ‖y‖₂ of a group, rounded up."""
        return math.sqrt(self.count if self.count > 1 else 1.0) * (1 + 4 * U)


def layers(
    program: Program, output: str, boxes: frozenset[str], unbounded: str | None
) -> tuple[list[Layer], Form]:
    """The layers an output is made of, and the output as a form over them.

    Parameters
    ----------
    program, output
        What is bounded.
    boxes
        Nodes that are known by their range alone.
    unbounded
        The input that runs through all of ℝⁿ, if there is one.
    """
    reader = _Reader(program, boxes, unbounded)
    wanted = {output}
    for node in reversed(program.nodes):
        if node.name in wanted and node.name not in boxes:
            wanted.update(node.operands)
    for node in program.nodes:
        if node.name in wanted:
            reader.forms[node.name] = reader.read(node)
    form = reader.forms[output]
    if not isinstance(form, Form):
        raise CertificateError(
            f"{output!r} is no affine function of the layers this proof names: {reader.lost or 'an operation'} "
            "between them can't be re-checked independently."
        )
    return reader.made, form


class _Reader:
    def __init__(self, program: Program, boxes: frozenset[str], unbounded: str | None) -> None:
        self.program, self.boxes, self.unbounded = program, boxes, unbounded
        self.forms: dict[str, Any] = {}
        self.made: list[Layer] = []
        self.rows = 1
        self.lost = ""

    def read(self, node: Node) -> Any:
        """The node as a form (a tuple of them where it has several values), ``None`` where it is none."""
        if node.name in self.boxes:
            return self._variables("box", node, math.prod(sizes(node)))
        if node.role == "constant":
            value = self.program.constants[node.name].detach()
            if value.is_complex():
                return None
            return Form(Rough.exact(value.to(torch.float64).numpy()[None].copy()))
        if node.role == "input":
            if node.name != self.unbounded:
                return None
            return self._variables("input", node, math.prod(sizes(node)), degree=1)
        operands = [None if name is None else self.forms.get(name) for name in node.inputs]
        missing = [
            name is not None and form is None for name, form in zip(node.inputs, operands, strict=True)
        ]
        made = None
        if not any(missing) or (node.op in NORMS and not any(missing[1:])):
            made = self._step(node, operands)
        if made is None and not self.lost:
            self.lost = f"{node.op} ({node.name})"
        return made

    def _variables(self, kind: str, node: Node, size: int, degree: int = 0, **details: Any) -> Form:
        if size * (self.rows + size) > LARGEST:
            raise CertificateError(f"{node.name!r} has too many entries to be re-checked independently.")
        columns = slice(self.rows, self.rows + size)
        self.made.append(Layer(kind, node, columns, **details))
        self.rows += size
        mid = np.zeros((self.rows, size))
        mid[columns] = np.eye(size)
        return Form(Rough.exact(mid.reshape(self.rows, *sizes(node))), degree)

    def _step(self, node: Node, operands: list[Any]) -> Any:
        if node.op == "getitem":
            return operands[0][int(node.attributes["index"])] if isinstance(operands[0], tuple) else None
        if any(isinstance(o, tuple) for o in operands):
            return None
        if node.op in NORMS:
            return self._norm(node, operands)
        moving = [o for o in operands if o is not None and o.moving]
        if len({o.degree for o in moving}) > 1:
            return None
        degree = moving[0].degree if moving else 0
        made: Any = None
        if node.op in MOVING:
            made = self._moved(node, operands)
        elif node.op in AVERAGES:
            made = self._averaged(node, operands[0])
        elif node.op in WEIGHTED:
            made = self._weighted(node, operands)
        elif node.op in ("add", "sub", "mul", "div", "neg"):
            made = self._arithmetic(node, operands)
        elif node.op == "batch_norm" and not node.attributes.get("training"):
            made = self._batch_norm(node, operands)
        elif (
            moving and len(node.operands) == 1 and (sigma := activation(node.op, node.attributes)) is not None
        ):
            return self._variables(
                "curve", node, math.prod(sizes(node)), degree, argument=operands[0], sigma=sigma
            )
        if isinstance(made, tuple):
            return tuple(Form(m, degree) for m in made)
        return None if made is None else Form(made, degree)

    # -- operations that are affine --------------------------------------------------------------------------

    def _moved(self, node: Node, operands: list[Form | None]) -> Any:
        if node.op == "cast" and (node.dtype is None or not node.dtype.is_floating_point):
            return None  # rounds to integers
        rows = max(o.value.mid.shape[0] for o in operands if o is not None)
        given = [None if o is None else o.padded(rows) for o in operands]
        mid = _over_rows(node, [None if g is None else g.mid for g in given])
        rad = _over_rows(node, [None if g is None else g.rad for g in given])
        if isinstance(mid, tuple):
            return tuple(Rough(m, r) for m, r in zip(mid, rad, strict=True))
        return Rough(mid, rad)

    def _averaged(self, node: Node, x: Form) -> Rough:
        value = x.value
        loss = gamma(value.mid[0].size + 8) * np.abs(value.mid) + value.rad * OVER
        return Rough(_over_rows(node, [value.mid]), over(_over_rows(node, [loss])))

    def _weighted(self, node: Node, operands: list[Form | None]) -> Rough | None:
        places = [i for i, o in enumerate(operands) if o is not None and o.moving] or [WEIGHTED[node.op][0]]
        if len(places) != 1 or places[0] not in WEIGHTED[node.op]:
            return None
        place = places[0]
        x = operands[place]
        assert x is not None
        bias = 0 if node.op == "addmm" else 2
        fixed = [None if o is None else o.value[0] for o in operands]
        attributes = {k: abs(v) if k in ("alpha", "beta") else v for k, v in node.attributes.items()}
        plain = replace(node, attributes=attributes)

        def run(of: Node, rows: Array, pick: Callable[[Rough], Array], offset: bool) -> Array:
            given: list[Array | None] = [None if f is None else pick(f) for f in fixed]
            if bias < len(given) and given[bias] is not None and not offset:
                given[bias] = np.zeros_like(given[bias]) if node.op == "addmm" else None
            made: Array = _over_rows(of, [rows if i == place else g for i, g in enumerate(given)], {place})
            return made

        def both(of: Node, rows: Array, pick: Callable[[Rough], Array]) -> Array:
            return np.concatenate([run(of, rows[:1], pick, True), run(of, rows[1:], pick, False)])

        mid, size = x.value.mid, np.abs(x.value.mid)
        exact_weights = not any(f is not None and f.rad.any() for i, f in enumerate(fixed) if i != place)
        loss = gamma(_terms(node, fixed, place) + 8) * both(plain, size, lambda f: np.abs(f.mid))
        rad = loss + both(plain, x.value.rad, lambda f: f.top) * OVER
        if not exact_weights:
            rad = rad + both(plain, size, lambda f: f.rad)
        # A unit vector picks one entry of the weights, and nothing is rounded.
        flat, unsure = mid.reshape(len(mid), -1), x.value.rad.reshape(len(mid), -1).any(1)
        units = ((flat != 0).sum(1) <= 1) & (np.abs(flat) == (flat != 0)).all(1) & ~unsure
        units &= exact_weights and attributes.get("alpha", 1) == 1 and attributes.get("beta", 1) == 1
        if bias < len(fixed) and fixed[bias] is not None:
            units[0] &= not flat[0].any()
        rad = over(rad)
        rad[units] = 0.0
        return Rough(both(node, mid, lambda f: f.mid), rad)

    def _arithmetic(self, node: Node, operands: list[Form | None]) -> Rough | None:
        parts = [_operand(node, operands, i, key) for i, key in ((0, "input"), (1, "other"))]
        rank = len(node.shape)
        first = _ranked(parts[0], rank)
        if first is None:
            return None
        if node.op == "neg":
            return -first
        second = _ranked(parts[1], rank)
        if second is None or node.attributes.get("rounding_mode") is not None:
            return None
        shape = sizes(node)
        if node.op in ("add", "sub"):
            alpha = float(node.attributes.get("alpha", 1)) * (1 if node.op == "add" else -1)
            second = second * Rough.exact(np.full((1,), alpha))
            count = max(len(first.mid), len(second.mid))
            return _spread(Form(first).padded(count), shape) + _spread(Form(second).padded(count), shape)
        if len(second.mid) > 1:
            first, second = second, first
            if len(second.mid) > 1 or node.op == "div":
                return None
        if node.op == "div":
            second = _inverse(second)
        return _spread(first * second, shape)

    def _batch_norm(self, node: Node, operands: list[Form | None]) -> Rough | None:
        x, weight, bias, mean, variance = operands
        if (
            x is None
            or mean is None
            or variance is None
            or any(o is not None and o.moving for o in operands[1:])
        ):
            return None
        view = (1, 1, -1, *(1,) * (len(node.shape) - 2))

        def channel(form: Form) -> Rough:
            return Rough(form.value.mid.reshape(view), form.value.rad.reshape(view))

        squares = channel(variance) + Rough.exact(np.full((1,), float(node.attributes["eps"])))
        factor = inverse_root(squares)
        if weight is not None:
            factor = factor * channel(weight)
        offset = -(channel(mean) * factor)
        if bias is not None:
            offset = offset + channel(bias)
        made = x.value * factor
        return made + Form(_spread(offset, sizes(node))).padded(len(made.mid))

    def _norm(self, node: Node, operands: list[Form | None]) -> Form | None:
        if any(o is not None and o.moving for o in operands[1:]):
            return None
        shape, a = sizes(node), node.attributes
        index = np.arange(math.prod(shape)).reshape(shape)
        axes: tuple[int, ...] = (1,)
        count, centred = 1.0, True
        if node.op in ("layer_norm", "rms_norm", "l2_normalize"):
            axes = tuple(int(d) for d in a["dim"])
            if a.get("correction", 0) != 0 or float(a.get("p", 2.0)) != 2.0:
                return None
            kept = [d for d in range(len(shape)) if d not in axes]
            groups = index.transpose(*kept, *axes).reshape(-1, math.prod(shape[d] for d in axes))
            centred = node.op == "layer_norm"
        else:
            if node.op == "instance_norm" and not a.get("use_input_stats", True):
                return None
            parts = int(a["num_groups"]) if node.op == "group_norm" else shape[1]
            groups = index.reshape(shape[0] * parts, -1)
        if node.op != "l2_normalize":
            count = float(groups.shape[1])
        eps = float(a.get("eps") or 0.0)
        inside = a.get("eps_mode", "inside") == "inside"
        made = self._variables(
            "norm", node, index.size, argument=operands[0], groups=groups, centred=centred, count=count,
            eps=eps if inside else None,
        ).value  # fmt: skip
        view = [shape[d] if d in axes else 1 for d in range(len(shape))]
        given = operands[1:2] if node.op == "rms_norm" else operands[1:3]
        laid = [
            None if o is None else Rough(o.value.mid.reshape(1, *view), o.value.rad.reshape(1, *view))
            for o in given
        ]
        if laid and laid[0] is not None:
            made = made * laid[0]
        if len(laid) > 1 and laid[1] is not None:
            made = made + Form(_spread(laid[1], shape)).padded(len(made.mid))
        return Form(made)


def sizes(node: Node) -> tuple[int, ...]:
    """A node's shape as numbers."""
    return tuple(int(d) for d in node.shape)


def _terms(node: Node, fixed: Sequence[Rough | None], place: int) -> int:
    """Products that are added up in one entry of the result."""
    other = fixed[
        1 if node.op not in ("matmul", "addmm") else next(i for i in WEIGHTED[node.op] if i != place)
    ]
    assert other is not None
    return (
        int(other.mid.size) if node.op in ("conv", "conv_transpose") else int(max(other.mid.shape, default=1))
    )


def _over_rows(node: Node, arrays: Sequence[Array | None], along: set[int] | None = None) -> Any:
    """The operation on every row of its operands (of those in ``along``; the others are taken as they are)."""
    tensors = [None if a is None else torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
    moving = [i for i, t in enumerate(tensors) if t is not None and (along is None or i in along)]
    count = next(tensors[i].shape[0] for i in moving)  # type: ignore[union-attr]
    if count == 0:
        return np.zeros((0, *sizes(node)))

    def step(*given: Tensor) -> Any:
        full = list(tensors)
        for i, tensor in zip(moving, given, strict=True):
            full[i] = tensor
        return compute_node(node, full, {}, torch.float64)

    made: Any = torch.vmap(step)(*[t for i, t in enumerate(tensors) if i in moving and t is not None])
    return tuple(m.numpy() for m in made) if isinstance(made, tuple) else made.numpy()


def _operand(node: Node, operands: Sequence[Form | None], place: int, key: str) -> Rough | None:
    form = operands[place] if place < len(operands) else None
    if form is not None:
        return form.value
    number = node.attributes.get(key)
    return Rough.exact(np.full((1,), float(number))) if isinstance(number, int | float) else None


def _ranked(value: Rough | None, rank: int) -> Rough | None:
    """With axes of size 1 in front of the shape, so that rows stay rows when shapes are broadcast."""
    if value is None:
        return None
    shape = (value.mid.shape[0], *(1,) * (rank - value.mid.ndim + 1), *value.mid.shape[1:])
    return Rough(value.mid.reshape(shape), value.rad.reshape(shape))


def _spread(value: Rough, shape: tuple[int, ...]) -> Rough:
    full = (value.mid.shape[0], *shape)
    return Rough(np.broadcast_to(value.mid, full).copy(), np.broadcast_to(value.rad, full).copy())


def _inverse(value: Rough) -> Rough:
    least = np.abs(value.mid) - value.rad
    if not (least > 0).all():
        raise CertificateError("A division by what may be 0 can't be re-checked independently.")
    mid = 1.0 / value.mid
    return Rough(mid, over(np.abs(mid) * (2 * U + value.rad / least)))


def inverse_root(value: Rough) -> Rough:
    least = value.mid - value.rad
    if not (least > 0).all():
        raise CertificateError("A root of what may be 0 or less can't be re-checked independently.")
    mid = 1.0 / np.sqrt(value.mid)
    return Rough(mid, over(mid * (8 * U + value.rad / least)))
