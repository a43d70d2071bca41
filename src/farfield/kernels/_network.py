"""The kernel of a network of infinite width, evaluated on data."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield import engine as engines
from farfield._typing import Float
from farfield.errors import InvalidValueError, PrecisionError
from farfield.kernels import _program as program
from farfield.kernels._block import TableTile
from farfield.kernels._inputs import Rows, embed, normalize_inputs, separate_pairs
from farfield.kernels._layers import Identity, Layer, LayerNorm, Residual
from farfield.kernels._program import KernelKind, Parts, WalkTile
from farfield.kernels._state import KernelState
from farfield.kernels._supremum import sup_diagonal
from farfield.kernels._table import Interpolant, fit, refit

__all__ = ["KernelFunction", "NetworkKernel"]

_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
_SIDE, _HALF = 1024, 256
"""Side of a tile, and of one of a symmetric matrix, where half of each on the diagonal is work for nothing."""
_MANY = 1 << 20
"""Entries from which on several workers pay, and compiled code, whose first call in a process takes half a second,
and two the first time ever. By the size of the matrix alone: the same one has the same last digits again."""


@dataclass(frozen=True)
class NetworkKernel:
    r"""NNGP and NTK of a network of infinite width, as functions of two sets of inputs.

    NTK parametrization ([P1] App. A): z = √(σ_w²/fan_in) W ξ + σ_b b with standard normal entries. Norms have ε
    = 0 and no affine parameters.

    .. math:: K(x, x') = \mathbb E\, f(x) f(x'), \qquad
              \Theta(x, x') = \mathbb E\, \nabla_{\!W} f(x)\cdot\nabla_{\!W} f(x')

    Inputs go through in float64 up to the angle between them. Above the first norm that every input passes, the
    layers are one polynomial in that angle (``compress``), so the cost of an entry does not depend on depth;
    its error is measured when it is built. Float32 inputs give float32 results. Nothing is drawn at random.

    Parameters
    ----------
    layers
        From the inputs up. The last one is the readout, a Dense layer in every ordinary network.
    compress
        Whether to use the polynomial; layer by layer otherwise.
    tolerance
        Its largest error, relative to the largest value on [0, π]; 1e-12 in float64 and 1e-6 in float32 if None.
    assumed
        What :func:`from_module` took for granted of the module, in sentences.

    See Also
    --------
    mlp : the usual way to make one.
    from_module : from a torch module.

    References
    ----------
    [P1] §3 and App. A.

    Examples
    --------
    >>> from farfield import kernels
    >>> k = kernels.mlp(depth=2, layer_norm="first", bias_var=0.1)
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1e9, 0.0]])
    >>> k.ntk(x)
    tensor([[3.3000, 1.1311, 2.7180],
            [1.1311, 3.3000, 0.9460],
            [2.7180, 0.9460, 3.3000]])
    >>> round(k.sup_diagonal(), 6)
    3.3
    """

    layers: tuple[Layer, ...]
    compress: bool = True
    tolerance: float | None = None
    assumed: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        _ = self.parts

    @functools.cached_property
    def parts(self) -> Parts:
        """The network taken apart where its kernel simplifies."""
        return program.split(self.layers)

    # ------------------------------------------------------------------ matrices

    def nngp(
        self,
        x1: Float[Tensor, "*batch n d"],
        x2: Float[Tensor, "*batch m d"] | None = None,
        *,
        engine: str | engines.Engine = "auto",
        memory: int | str = "1GB",
        out: Tensor | NDArray[Any] | None = None,
        checkpoint: engines.Checkpoint | str | os.PathLike[str] | None = None,
        progress: engines.Progress | None = None,
    ) -> Float[Tensor, "*batch n m"]:
        """K(x₁, x₂), the covariance of the untrained network's outputs.

        Parameters
        ----------
        x1, x2
            Inputs, one a row; ``x2`` defaults to ``x1``, and then half the entries are computed and the
            diagonal is exact.
        engine
            Where tiles run: ``"auto"``, ``"local"``, ``"ray"`` or an :class:`farfield.engine.Engine`.
        memory
            Budget for temporaries, beside the result itself.
        out
            Where to write the result: a tensor or a ``numpy.memmap`` of the right shape and dtype.
        checkpoint
            A folder, or a :class:`farfield.engine.Checkpoint`, for finished tiles: an interrupted run goes on.
        progress
            Called with (tiles done, tiles in all).
        """
        return self._matrix("nngp", x1, x2, engine, memory, out, checkpoint, progress)

    def ntk(
        self,
        x1: Float[Tensor, "*batch n d"],
        x2: Float[Tensor, "*batch m d"] | None = None,
        *,
        engine: str | engines.Engine = "auto",
        memory: int | str = "1GB",
        out: Tensor | NDArray[Any] | None = None,
        checkpoint: engines.Checkpoint | str | os.PathLike[str] | None = None,
        progress: engines.Progress | None = None,
    ) -> Float[Tensor, "*batch n m"]:
        """Θ(x₁, x₂), the kernel of gradient descent on the network; parameters as for :meth:`nngp`."""
        return self._matrix("ntk", x1, x2, engine, memory, out, checkpoint, progress)

    def _matrix(
        self,
        kind: KernelKind,
        x1: Tensor,
        x2: Tensor | None,
        engine: str | engines.Engine,
        memory: int | str,
        out: Tensor | NDArray[Any] | None,
        checkpoint: engines.Checkpoint | str | os.PathLike[str] | None,
        progress: engines.Progress | None,
    ) -> Tensor:
        symmetric = x2 is None
        dtype = _result_dtype(x1, x2)
        if self._tracks(x1, x2) or x1.dim() != 2 or (x2 is not None and x2.dim() != 2):
            if out is not None or checkpoint is not None:
                raise InvalidValueError(
                    "out and checkpoint are for plain matrices: inputs of shape (n, d) and (m, d), no gradients."
                )
            return self._direct(kind, x1, x2, dtype)
        with torch.no_grad():
            rows1 = self._rows(x1)
            rows2 = rows1 if x2 is None else self._rows(x2)
            task = self._task(kind, rows1, rows2, dtype)
            where = _workers(engine, len(rows1) * len(rows2))
            size = 40 if isinstance(task, TableTile) else 160
            height = engines.tile_height(
                memory=memory, bytes_per_entry=size, workers=where.sharing, cache=None
            )
            side = min(_HALF if symmetric else _SIDE, height)
            tiles = engines.tiles(len(rows1), len(rows2), height=side, symmetric=symmetric)
            if out is not None and (given := torch.as_tensor(out[:0]).dtype) != dtype:
                raise InvalidValueError(f"The result of inputs of {x1.dtype} is {dtype}; out holds {given}.")
            if out is None:
                out = engines.empty_matrix(len(rows1), len(rows2), dtype=dtype, device=x1.device)
            # A network is known by its values: it may hold functions, which have no content to compare.
            kept = engines.Checkpoint.at(
                checkpoint, lambda: ("kernel", kind, self._direct(kind, x1[:16], None, dtype), x1, x2, side)
            )
            matrix = where.fill(out, task, tiles, symmetric=symmetric, checkpoint=kept, progress=progress)
            if symmetric and len(rows1):
                matrix.diagonal().copy_(self.diagonal(x1, kind))
        return matrix

    def _direct(self, kind: KernelKind, x1: Tensor, x2: Tensor | None, dtype: torch.dtype) -> Tensor:
        """One untiled evaluation: batches and gradients."""
        rows1 = self._rows(x1)
        rows2 = rows1 if x2 is None else self._rows(x2)
        task = self._walk(kind, rows1, rows2, dtype, tracked=self._tracks(x1, x2))
        value = task.pairs(rows1, rows2)
        if x2 is None:
            exact = self.diagonal(x1, kind)
            eye = torch.eye(exact.shape[-1], dtype=torch.bool, device=exact.device)
            value = torch.where(eye, exact.unsqueeze(-1), (value + value.mT) / 2)
        return value

    def state(
        self, x1: Float[Tensor, "*batch n d"], x2: Float[Tensor, "*batch m d"] | None = None
    ) -> KernelState:
        """The state at the output, layer by layer in float64: covariance, tangent kernel and variances at once."""
        rows1 = self._rows(x1)
        rows2 = rows1 if x2 is None else self._rows(x2)
        state = program.first_state(rows1, rows2, torch.float64, "ntk", _span(rows1, rows2), False)
        return program.walk(self.parts.below + self.parts.above, state)

    def diagonal(self, x: Float[Tensor, "*batch n d"], kind: KernelKind = "ntk") -> Float[Tensor, "*batch n"]:
        """K(x, x) or Θ(x, x) for every input, exactly: the angle is 0 and stays 0.

        Cost: a few operations an input and layer, up to the first norm; none above it.
        """
        dtype, kind = _result_dtype(x, None), _kind(kind)
        rows = self._rows(x)
        state = separate_pairs(rows, torch.float64, tangent=kind == "ntk").replace(span=_span(rows, rows))
        if not self.parts.compressible:
            return program.output(program.walk(self.parts.above, state), kind).to(dtype)
        origin = self._origin(kind, x.device)
        if self.parts.direct:
            scale = torch.ones_like(rows.q) if self.parts.degree is None else rows.q**self.parts.degree
            return (origin[0] * scale).to(dtype)
        state = program.walk(self.parts.below, state)
        if state.ntk is None:
            return (origin[0] * torch.ones_like(rows.q)).to(dtype)
        return (origin[0] + origin[1] * state.ntk).to(dtype)

    def _origin(self, kind: KernelKind, device: torch.device) -> Tensor:
        """The layers above the first norm at angle 0: exact, and with gradients to the variances where wanted."""
        if self._tracks():
            zero = torch.zeros(1, dtype=torch.float64, device=device)
            return program.above(self.parts, kind, zero)[:, 0]
        cache: dict[KernelKind, tuple[Any, Tensor]] = self.__dict__.setdefault("_origins", {})
        if kind not in cache or cache[kind][0] != self._values():
            with torch.no_grad():
                zero = torch.zeros(1, dtype=torch.float64)
                cache[kind] = self._values(), program.above(self.parts, kind, zero)[:, 0]
        return cache[kind][1].to(device)

    def function(self, kind: KernelKind = "ntk") -> KernelFunction:
        """One of the two kernels as a function of inputs, for what takes any kernel."""
        return KernelFunction(self, _kind(kind))

    # ------------------------------------------------------------------ bounds and the far field

    def sup_diagonal(self, kind: KernelKind = "ntk") -> float:
        """The supremum C of the kernel's diagonal over all inputs; ∞ without a norm on every path.

        See :func:`farfield.kernels.sup_diagonal`.
        """
        return sup_diagonal(self.parts, _kind(kind))

    def slope(
        self, u: Float[Tensor, "n d"], x: Float[Tensor, "m d"], kind: KernelKind = "ntk"
    ) -> Float[Tensor, "n m"]:
        r"""The limit of Θ(λu, x)/λ as λ → ∞ (or of K): how fast the kernel grows along directions u.

        Zero with a norm that every input passes. Without one, for activations with φ(ax) = aφ(x), a > 0, the
        recursion with the biases of the first argument left out; exact. The posterior mean grows like λ Σ_j α_j
        Θ̂(u, x_j).

        References
        ----------
        Ours. [P1] Theorem 3.1 has that some data set makes the mean grow; this says how fast, for any.
        """
        dtype = _result_dtype(u, x)
        if self.parts.below or any(layer.cuts for layer in self.parts.inputs):
            return torch.zeros(len(u), len(x), dtype=dtype, device=u.device)
        rows1, rows2 = self._rows(u, far=True), self._rows(x)
        task = WalkTile(self.parts, _kind(kind), dtype, rows1, rows2, _span(rows1, rows2), far=True)
        return task.pairs(rows1, rows2)

    # ------------------------------------------------------------------ how

    def _tracks(self, *inputs: Tensor | None) -> bool:
        """Whether a gradient is wanted, to inputs or to variances."""
        if not torch.is_grad_enabled():
            return False
        return any(t is not None and t.requires_grad for t in inputs) or any(
            t.requires_grad for t in _tensors(self.layers)
        )

    def _rows(self, x: Tensor, *, far: bool = False) -> Rows:
        if x.dim() < 2 or not x.dtype.is_floating_point:
            raise InvalidValueError(
                f"Inputs are floating-point, one a row: shape (n, d). Got {x.dtype} of shape {tuple(x.shape)}."
            )
        for layer in self.parts.inputs:
            if not isinstance(layer, Identity):
                x = normalize_inputs(x, center=isinstance(layer, LayerNorm))
        first = self.parts.first
        rows = embed(x, first.weight_var, first.bias_var, far=far)
        return rows.normalized() if self.parts.below and self.parts.direct else rows.finite()

    def _task(self, kind: KernelKind, rows1: Rows, rows2: Rows, dtype: torch.dtype) -> TableTile | WalkTile:
        table = self._table(kind, dtype) if self.parts.direct and dtype in _TOLERANCE else None
        if table is None:
            return self._walk(kind, rows1, rows2, dtype, tracked=False)
        degree = self.parts.degree
        scale1 = scale2 = None
        if degree is not None:
            scale1, scale2 = (rows.q ** (degree / 2) for rows in (rows1, rows2))
            scale1, scale2 = scale1.to(dtype), scale2.to(dtype)
        compiled = len(rows1) * len(rows2) >= _MANY and rows1.unit.device.type == "cpu"
        return TableTile(table, dtype, rows1.unit, rows2.unit, scale1, scale2, compiled)

    def _walk(
        self, kind: KernelKind, rows1: Rows, rows2: Rows, dtype: torch.dtype, *, tracked: bool
    ) -> WalkTile:
        table = self._table(kind, torch.float64) if self.parts.below else None
        if table is not None and tracked and any(t.requires_grad for t in _tensors(self.layers)):
            table = refit(functools.partial(program.above, self.parts, kind), table)
        return WalkTile(self.parts, kind, dtype, rows1, rows2, _span(rows1, rows2), table)

    def _table(self, kind: KernelKind, dtype: torch.dtype) -> Interpolant | None:
        """The polynomial, or None where there is nothing to compress or no polynomial that is good enough.

        An activation that jumps makes such a network: the angle above it goes like the root of the angle below. So
        does a deep one that tells near inputs apart: a peak at θ = 0 that no short polynomial has.
        """
        if not (self.compress and self.parts.compressible):
            return None
        try:
            return self.table(kind, dtype)
        except PrecisionError:
            return None

    def table(self, kind: KernelKind, dtype: torch.dtype = torch.float64) -> Interpolant:
        """The polynomial in the angle that stands for the layers above the first norm, with its degree and error.

        Raises
        ------
        InvalidValueError
            If there is no such norm and the network is not homogeneous either: nothing to compress.
        """
        if not self.parts.compressible:
            raise InvalidValueError(
                "Nothing is a function of the angle alone here: there is no norm that every input passes, and the "
                "network has biases or an activation that is not positively homogeneous."
            )
        cache: dict[Any, tuple[Any, Interpolant | PrecisionError]] = self.__dict__.setdefault("_tables", {})
        values, found = cache.get((kind, dtype), (None, None))
        if found is None or values != self._values():
            functions = functools.partial(program.above, self.parts, kind)
            try:
                with torch.no_grad():
                    found = fit(functions, tolerance=self.tolerance or _TOLERANCE[dtype], dtype=dtype)
            except PrecisionError as error:
                found = error
            cache[kind, dtype] = self._values(), found
        if isinstance(found, PrecisionError):
            raise found
        return found

    def _values(self) -> tuple[float, ...]:
        """Values of the variances given as tensors, which an optimizer may have changed in place."""
        return tuple(float(t.detach()) for t in _tensors(self.layers))

    def __getstate__(self) -> dict[str, Any]:
        # With the tables: a task that goes to a worker would fit them there anew.
        kept = ("layers", "compress", "tolerance", "assumed", "_tables", "_origins")
        return {k: self.__dict__[k] for k in kept if k in self.__dict__}


@dataclass(frozen=True)
class KernelFunction:
    """One kernel of a network: ``k(x1, x2)``, ``k.diagonal(x)``, ``k.sup_diagonal()``.

    Parameters
    ----------
    network
        Whose kernel it is.
    kind
        ``"ntk"`` or ``"nngp"``.
    """

    network: NetworkKernel
    kind: KernelKind

    def __call__(self, x1: Tensor, x2: Tensor | None = None, **options: Any) -> Tensor:
        """The matrix of every pair; options as for :meth:`NetworkKernel.ntk`."""
        method = self.network.ntk if self.kind == "ntk" else self.network.nngp
        return method(x1, x2, **options)

    def diagonal(self, x: Tensor) -> Tensor:
        """The kernel of every input with itself."""
        return self.network.diagonal(x, self.kind)

    def sup_diagonal(self) -> float:
        """The supremum of the diagonal over all inputs."""
        return self.network.sup_diagonal(self.kind)


def _kind(kind: str) -> KernelKind:
    if kind not in ("nngp", "ntk"):
        raise InvalidValueError(f"A kernel is 'nngp' or 'ntk', got {kind!r}.")
    return kind  # type: ignore[return-value]


def _result_dtype(x1: Tensor, x2: Tensor | None) -> torch.dtype:
    if x2 is not None and (x1.shape[-1] != x2.shape[-1] or x1.device != x2.device):
        raise InvalidValueError(
            "Both sets of inputs have the same features, on the same device; got shapes "
            f"{tuple(x1.shape)} on {x1.device} and {tuple(x2.shape)} on {x2.device}."
        )
    return x1.dtype if x2 is None else torch.promote_types(x1.dtype, x2.dtype)


def _span(rows1: Rows, rows2: Rows) -> tuple[float, float]:
    with torch.no_grad():
        both = [r.q for r in (rows1, rows2) if r.q.numel()]
        if not both:
            return 1.0, 1.0
        return min(float(q.min()) for q in both), max(float(q.max()) for q in both)


def _workers(engine: str | engines.Engine, entries: int) -> engines.Engine:
    """The engine; where none is asked for and torch has several threads, as many workers with one thread each.

    A pass over a block that fits the cache is too short to be divided among threads.
    """
    threads = torch.get_num_threads()
    if engine == "auto" and threads > 1 and entries >= _MANY:
        return engines.local(threads, threads=1)
    return engines.engine(engine)


def _tensors(layers: tuple[Layer, ...]) -> list[Tensor]:
    found: list[Tensor] = []
    for layer in layers:
        if isinstance(layer, Residual):
            found += _tensors(layer.branch)
        found += [
            v
            for v in (getattr(layer, "weight_var", None), getattr(layer, "bias_var", None))
            if isinstance(v, Tensor)
        ]
    return found
