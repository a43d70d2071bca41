"""Nyström: a kernel fit through landmarks, from a stream of any length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from farfield import engine as engines
from farfield._typing import Float
from farfield.errors import InvalidValueError
from farfield.kernels import KernelKind, NetworkKernel
from farfield.regression import _bounds as bounds
from farfield.regression._covariance import Covariance, Work, checked, multiply, resolve
from farfield.regression._data import checked_data

__all__ = ["Accumulate", "Nystrom", "NystromPosterior", "Sums", "add_sums"]

Sums: TypeAlias = tuple[Tensor, Tensor, Tensor, int]
"""Σφφᵀ (upper blocks), Σφyᵀ of shape (m,) or (m, k), Σy², and how many rows; φ = k(landmarks, x)."""

_CHUNK = 4096
"""Rows at once at most: more make products no faster."""
_STRIPS, _STRIP = 8, 256
"""Strips of rows in which the symmetric product is taken, at most so many and not narrower: down to 9/16 of the full
one's operations, each still a large product."""


@dataclass(frozen=True)
class NystromPosterior:
    """A kernel fit in the span of landmarks; made by :meth:`Nystrom.solve`.

    Attributes
    ----------
    weights
        w in f = Σ_j w_j k(·, z_j), shape (m,) or (m, k), float64.
    landmarks
        z, shape (m, d).
    energy
        wᵀK_mm w, the squared RKHS norm of f, for each output.
    noise
        Variance of the targets' noise.
    rank
        Directions of the landmarks' span that were used; others are lost in rounding.
    count
        Rows that were seen.
    training_error
        Mean squared error on them, for each output.
    """

    weights: Float[Tensor, "m ..."]
    landmarks: Float[Tensor, "m d"] = field(repr=False)
    energy: Float[Tensor, "*outputs"]
    noise: float
    rank: int
    count: int
    training_error: Float[Tensor, "*outputs"]
    kernel: Covariance = field(repr=False)
    product: Tensor = field(repr=False)
    """K_mm w, shape (m, k)."""
    work: Work = field(repr=False)

    def mean(self, x: Float[Tensor, "q d"]) -> Float[Tensor, "q ..."]:
        """Σ_j w_j k(x, z_j), in float64 and given in the dtype of ``x``. Cost: q·m kernel entries."""
        weights = self.weights if self.weights.dim() == 2 else self.weights[:, None]
        value = multiply(self.kernel, x.to(torch.float64), self.landmarks, weights, self.work).to(x.dtype)
        return value if self.weights.dim() == 2 else value[:, 0]

    def output_bound(self, x: Float[Tensor, "q d"] | None = None) -> Float[Tensor, "*any"]:
        """√(C·wᵀK_mm w) for each output, which |f| exceeds at no input; or ‖f‖√k(x,x) at the inputs given.

        As for :meth:`Posterior.output_bound`: it holds for the w computed, however few the landmarks, and is
        rounded up.
        """
        weights = self.weights if self.weights.dim() == 2 else self.weights[:, None]
        diagonal = self.kernel.diagonal(self.landmarks)
        energy = bounds.energy_above(self.kernel, weights, self.product, diagonal)
        if x is None:
            supremum = bounds.check_supremum(self.kernel.sup_diagonal(), diagonal)
            value = bounds.rkhs(supremum, energy)
            return value if self.weights.dim() == 2 else value[0]
        value = bounds.at(self.kernel.diagonal(x.to(torch.float64)), energy)
        return value if self.weights.dim() == 2 else value[:, 0]


class Nystrom:
    r"""Kernel regression on m landmarks z, from data seen once.

    .. math:: f = \sum_j w_j\, k(\cdot, z_j), \qquad (K_{mn}K_{nm} + \sigma^2 K_{mm})\, w = K_{mn}\, y

    the minimizer of Σ(f(x_i) − y_i)² + σ²‖f‖² among such f. What is kept of the data is the sum K_mn K_nm, in
    float64: m² numbers, whatever n. With the inputs themselves as landmarks it is :func:`fit`, up to the
    rounding of normal equations: directions in which K_mm is so small that rounding would drown them are left
    out.

    Cost: n·m kernel entries and about (9/8)·n·m² operations. The result does not depend, to the last bit, on how
    rows were divided into calls of :meth:`partial_fit`.

    Parameters
    ----------
    kernel
        The kernel of a network, or any :class:`Covariance`.
    landmarks
        z, shape (m, d); see :func:`landmarks`.
    kind
        ``"ntk"`` or ``"nngp"``, if the kernel is a :class:`farfield.kernels.NetworkKernel`.
    dtype
        Type of the features k(x, z) and of their products within 4096 rows. float32 is about twice as fast, and its
        predictions are good to about three digits.
    memory
        Budget for the features of a chunk.

    Examples
    --------
    >>> from farfield import kernels
    >>> x = torch.linspace(-2, 2, 200, dtype=torch.float64)[:, None]
    >>> model = Nystrom(kernels.mlp(depth=2, layer_norm="first", bias_var=0.1), x[::20])
    >>> for part in x.split(50):
    ...     _ = model.partial_fit(part, torch.sin(part[:, 0]))
    >>> f = model.solve(noise=1e-6)
    >>> f.count, bool(f.training_error < 1e-3)
    (200, True)
    """

    def __init__(
        self,
        kernel: NetworkKernel | Covariance,
        landmarks: Float[Tensor, "m d"],
        *,
        kind: KernelKind = "ntk",
        dtype: torch.dtype = torch.float64,
        memory: int | str = "256MB",
    ) -> None:
        if landmarks.dim() != 2 or len(landmarks) == 0:
            raise InvalidValueError(
                f"Landmarks are inputs, at least one, of shape (m, d); got shape {tuple(landmarks.shape)}."
            )
        if dtype not in (torch.float32, torch.float64):
            raise InvalidValueError(f"Features are float32 or float64, got {dtype}.")
        self.kernel = resolve(kernel, kind)[0]
        self.landmarks = landmarks.detach().to(torch.float64)
        self.dtype = dtype
        self.memory = engines.parse_memory(memory)
        self._sums: Sums | None = None
        self._pending: list[tuple[Tensor, Tensor]] = []

    @property
    def count(self) -> int:
        """Rows seen."""
        return (0 if self._sums is None else self._sums[3]) + sum(len(x) for x, _ in self._pending)

    def partial_fit(self, x: Float[Tensor, "n d"], y: Float[Tensor, "n ..."]) -> Nystrom:
        """Take some more rows; returns itself. Rows wait until there is a chunk of them."""
        if len(x) == 0 and len(y) == 0:
            return self
        inputs, targets = checked_data(x, y)
        targets = targets.reshape(y.shape)
        self._check(inputs, targets)
        self._pending.append((inputs, targets))
        chunk = self._chunk()
        if sum(len(part) for part, _ in self._pending) >= chunk:
            inputs, targets = self._waiting()
            whole = len(inputs) - len(inputs) % chunk
            self._sums = self._task()((inputs[:whole], targets[:whole]), self._sums)
            # Cloned: a view would keep the whole batch in memory.
            self._pending = [(inputs[whole:].clone(), targets[whole:].clone())] if whole < len(inputs) else []
        return self

    def stream(
        self,
        batches: Iterable[tuple[Tensor, Tensor]],
        *,
        engine: str | engines.Engine = "auto",
        checkpoint: engines.Checkpoint | None = None,
        progress: engines.Progress | None = None,
    ) -> Nystrom:
        """Take all batches (x, y) of a stream, through an engine; returns itself.

        Batches are reduced one by one and in pairs (:meth:`farfield.engine.Engine.stream`), on any number of
        workers and from a checkpoint; log₂ of their number times m² numbers are held.
        """
        self._tabulate()
        total = engines.engine(engine).stream(
            batches, self._task(), add_sums, checkpoint=checkpoint, progress=progress
        )
        return self._take(total)

    def merge(self, other: Nystrom) -> Nystrom:
        """A model that has seen the rows of both, which stay as they are; to rounding, one pass over all rows."""
        if not (self.dtype == other.dtype and self._same_kernel(other)):
            raise InvalidValueError(
                "Models are merged that have the same kernel, landmarks and dtype; these have not. Give every "
                "worker the same landmarks."
            )
        result = Nystrom(self.kernel, self.landmarks, dtype=self.dtype, memory=self.memory)
        for part in (self._total(), other._total()):
            if part is not None:
                own = (part[0].clone(), part[1].clone(), part[2].clone(), part[3])
                result._sums = own if result._sums is None else add_sums(result._sums, own)
        return result

    def solve(self, noise: float) -> NystromPosterior:
        """Solve for the rows seen so far; more may follow. Cost: about 20m³.

        Parameters
        ----------
        noise
            σ² ≥ 0, the variance of the targets' noise.
        """
        sums = self._total()
        if sums is None:
            raise InvalidValueError(
                "There is nothing to solve for: no rows were seen. Call partial_fit first."
            )
        if not noise >= 0:
            raise InvalidValueError(f"noise is a variance, at least 0; got {noise!r}.")
        gram, moments, squares, count = sums
        moment = moments if moments.dim() == 2 else moments[:, None]
        gram = torch.triu(gram) + torch.triu(gram, 1).mT
        kernel = checked(self.kernel, self.landmarks).to(torch.float64)
        basis = _basis(kernel, gram, noise, self.dtype)
        inner = basis.mT @ gram @ basis
        values, vectors = torch.linalg.eigh((inner + inner.mT) / 2)
        values = values.clamp(min=0) + noise
        inverse = torch.where(values > 0, 1 / torch.where(values > 0, values, 1.0), 0.0)
        weights = basis @ (vectors @ (inverse[:, None] * (vectors.mT @ (basis.mT @ moment))))
        product = kernel @ weights
        error = (squares - 2 * (weights * moment).sum(0) + (weights * (gram @ weights)).sum(0)) / count
        energy = (weights * product).sum(0)
        outputs = moments.shape[1:]
        return NystromPosterior(
            weights=weights.reshape(moments.shape),
            landmarks=self.landmarks,
            energy=energy.reshape(outputs),
            noise=float(noise),
            rank=basis.shape[1],
            count=count,
            training_error=error.clamp(min=0).reshape(outputs),
            kernel=self.kernel,
            product=product,
            work=Work(engines.engine("local"), self.memory),
        )

    # ------------------------------------------------------------------ how

    def _chunk(self) -> int:
        columns = len(self.landmarks)
        height = engines.tile_height(columns, memory=self.memory, bytes_per_entry=24, cache=None)
        return min(_CHUNK, height)

    def _task(self) -> Accumulate:
        return Accumulate(self.kernel, self.landmarks, self.dtype, self._chunk())

    def _tabulate(self) -> None:
        """Have the kernel make what it keeps, which then goes to workers with it."""
        checked(self.kernel, self.landmarks[:2].to(self.dtype))

    def _take(self, total: Sums) -> Nystrom:
        self._sums = total if self._sums is None else add_sums(self._sums, total)
        return self

    def _waiting(self) -> tuple[Tensor, Tensor]:
        return torch.cat([x for x, _ in self._pending]), torch.cat([y for _, y in self._pending])

    def _total(self) -> Sums | None:
        """The sums with the rows that wait, which keep waiting."""
        if not self._pending:
            return self._sums
        waiting = self._task()(self._waiting())
        return waiting if self._sums is None else add_sums(waiting, self._sums)

    def _same_kernel(self, other: Nystrom) -> bool:
        if not torch.equal(self.landmarks, other.landmarks):
            return False
        few = self.landmarks[:8]
        return torch.equal(self.kernel(few), other.kernel(few))

    def _check(self, x: Tensor, y: Tensor) -> None:
        outputs = y.shape[1:]
        if self._sums is not None:
            outputs = self._sums[1].shape[1:]
        elif self._pending:
            outputs = self._pending[0][1].shape[1:]
        if x.shape[1] != self.landmarks.shape[1] or outputs != y.shape[1:]:
            raise InvalidValueError(
                f"Rows have the {self.landmarks.shape[1]} features of the landmarks and targets the shape "
                f"of the first ones, {('n', *outputs)}; got {x.shape[1]} features and targets of shape "
                f"{tuple(y.shape)}."
            )


@dataclass(frozen=True)
class Accumulate:
    """The sums of a batch, chunk by chunk; picklable, so that it runs anywhere."""

    kernel: Covariance
    landmarks: Tensor
    dtype: torch.dtype
    chunk: int

    def __call__(self, batch: tuple[Tensor, Tensor], onto: Sums | None = None) -> Sums:
        x, y = checked_data(*batch)
        if onto is None:
            m, outputs = len(self.landmarks), batch[1].shape[1:]
            onto = (
                torch.zeros(m, m, dtype=torch.float64, device=x.device),
                torch.zeros(m, *outputs, dtype=torch.float64, device=x.device),
                torch.zeros(outputs, dtype=torch.float64, device=x.device),
                0,
            )
        gram, moment, squares, count = onto
        anchors = self.landmarks.to(self.dtype)
        with torch.no_grad():
            buffer = None
            for rows, targets in zip(x.split(self.chunk), y.split(self.chunk), strict=True):
                # Into the same memory again: new pages for every chunk would cost a tenth of the time.
                buffer = features = checked(self.kernel, rows.to(self.dtype), anchors, buffer)
                self._add_gram(gram, features)
                part = (features.mT @ targets.to(self.dtype)).to(torch.float64)
                moment += part.reshape(moment.shape)
                squares += (targets * targets).sum(0).reshape(squares.shape)
        return gram, moment, squares, count + len(x)

    def _add_gram(self, gram: Tensor, features: Tensor) -> None:
        m = len(gram)
        step = max(_STRIP, -(-m // _STRIPS))
        for start in range(0, m, step):
            left, right = features[:, start : start + step].mT, features[:, start:]
            strip = gram[start : start + step, start:]
            if features.dtype == torch.float64:
                strip.addmm_(left, right)
            else:
                strip += left @ right


def add_sums(left: Sums, right: Sums) -> Sums:
    """Both sums together; overwrites the first."""
    if left[1].shape != right[1].shape:
        raise InvalidValueError(
            "All targets have the same outputs; some have "
            f"{tuple(left[1].shape[1:]) or 'one, of shape (n,)'} and some "
            f"{tuple(right[1].shape[1:]) or 'one, of shape (n,)'}."
        )
    return left[0].add_(right[0]), left[1].add_(right[1]), left[2].add_(right[2]), left[3] + right[3]


def _basis(kernel: Tensor, gram: Tensor, noise: float, dtype: torch.dtype) -> Tensor:
    """T with TᵀK_mm T = I, of the directions in which rounding leaves something to solve for.

    Rounding in the sum moves TᵀST by ε‖S‖/λ in a direction with eigenvalue λ of K_mm, where TᵀST + σ²I is
    about ‖S‖λ/λ₁² + σ².
    """
    values, vectors = torch.linalg.eigh(kernel)
    top = float(values[-1])
    size = float(torch.linalg.eigvalsh(gram)[-1])
    unit = torch.finfo(dtype).eps
    safe = values.clamp(min=torch.finfo(torch.float64).tiny)
    clear = unit * size / safe <= 0.1 * (noise + size * safe / top**2)
    keep = clear & (values > len(values) * torch.finfo(torch.float64).eps * top)
    basis: Tensor = vectors[:, keep] / values[keep].sqrt()
    return basis
