"""The empirical tangent kernel: one call, several methods, a memory budget."""

from __future__ import annotations

import errno
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from farfield import engine as engines
from farfield.errors import InvalidValueError
from farfield.ntk._calls import TrackedParameters
from farfield.ntk._chain import chain_kernel
from farfield.ntk._factors import Gradients
from farfield.ntk._jacobian import JacobianTile
from farfield.ntk._layerwise import LayerwiseTile, bytes_per_input
from farfield.ntk._model import Outputs, ParameterFilter, Selection, require_evaluation, track
from farfield.ntk._plan import CallPlan, plan, whole_plan
from farfield.ntk._probe import probe_rows, require_function
from farfield.ntk._products import ProductTile
from farfield.ntk._sketch import Sketch, sketch
from farfield.ntk._transforms import ordinary
from farfield.ntk._whole import WholePass

__all__ = ["MethodChoice", "choose_method", "empirical_ntk", "layer_contributions", "sketch_ntk"]

KernelMethod: TypeAlias = Literal["auto", "layerwise", "jacobian", "ntvp"]
_METHODS = ("auto", "layerwise", "jacobian", "ntvp")
_LARGEST_BATCH = 512
"""Inputs that go through a model at once."""


@dataclass(frozen=True)
class MethodChoice:
    """Which method computes the kernel, why, and in what pieces.

    Parameters
    ----------
    method, reason
        The method, and the figures that decided.
    side
        Inputs on one side of a tile.
    batch
        Inputs that go through the model at once.
    room
        Bytes for what is held while a tile is contracted.
    """

    method: Literal["layerwise", "jacobian", "ntvp"]
    reason: str
    side: int
    batch: int
    room: int


def empirical_ntk(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    outputs: Outputs = "trace",
    parameters: ParameterFilter = None,
    method: KernelMethod = "auto",
    memory: int | str = "4GB",
    out: Tensor | NDArray[Any] | str | Path | None = None,
    checkpoint: engines.Checkpoint | str | os.PathLike[str] | None = None,
    engine: str | engines.Engine = "auto",
    progress: engines.Progress | None = None,
) -> Tensor:
    r"""Θ(x, x′) = Σ_k ∇f_k(x)·∇f_k(x′), the tangent kernel of a model as it stands.

    .. math::
        \Theta_{kl}(x, x') = \sum_\theta
        \frac{\partial f_k(x)}{\partial\theta}\frac{\partial f_l(x')}{\partial\theta}

    Exact to rounding, by whatever method. ``"layerwise"`` records how the model uses its parameters; a Linear
    layer's part is then (A Aᵀ + 1) ⊙ (B Bᵀ) with its inputs A and output gradients B, and the Jacobian, P
    numbers an output, is never formed. Convolutions, embeddings, norms' affine parameters, shared weights and
    several uses of one module are of the same kind; a parameter used in a way no rule knows (inside an LSTM,
    say) has its gradients taken as they are. ``"jacobian"`` forms the Jacobian, a chunk of inputs at a time;
    ``"ntvp"`` goes column by column through products with unit vectors.

    Parameters
    ----------
    model
        Any module that maps a batch (n, …) to a tensor (n, …), each output from its own input alone. In
        evaluation mode: dropout and BatchNorm in training mode are refused.
    x1, x2
        Inputs (n, …) and (m, …); ``x2`` defaults to ``x1``, and half the tiles are computed.
    outputs
        ``"trace"``: the sum over outputs, shape (n, m). ``"full"``: every pair of outputs, (n, m, K, K).
        ``"sum"``: of the sum of all outputs, (n, m). An index, or one for each output axis: of that output, (n,
        m).
    parameters
        Which parameters count: a function of name and parameter, names or prefixes; all that require a gradient
        if None.
    method
        ``"auto"`` (see :func:`choose_method`), ``"layerwise"``, ``"jacobian"`` or ``"ntvp"``.
    memory
        Memory budget, excluding the result.
    out
        Where to write the result: a tensor, an array, or the path of a ``.npy`` file, which is created and
        memory-mapped. For ``"full"`` it has the shape (K, K, n, m), and the result is a view of it.
    checkpoint
        A folder for finished tiles: a killed run goes on where it stopped, and ends with the same bits.
    engine, progress
        Where tiles run, and who is told.

    Examples
    --------
    >>> net = nn.Linear(2, 1, bias=False)
    >>> empirical_ntk(net, torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
    tensor([[1., 1.],
            [1., 5.]])
    """
    with torch.inference_mode(False), torch.no_grad():
        room = engines.parse_memory(memory) // 4 if method in ("auto", "layerwise") else 0
        simple = outputs in ("trace", "sum") and parameters is None and out is None and progress is None
        if method == "auto" and simple and checkpoint is None and engine in ("auto", "local"):
            found = chain_kernel(model, x1, x2, room)
            if found is not None:
                return found
        job = _KernelJob.of(model, x1, x2, outputs, parameters, room)
        choice = _choose(job, method, memory)
        symmetric = x2 is None and job.select.trace
        tiles = engines.tiles(len(job.x1), len(job.x2), height=choice.side, symmetric=symmetric)
        shape: tuple[int, ...] = (len(job.x1), len(job.x2))
        if not job.select.trace:
            shape = (job.plan.outputs, job.plan.outputs, *shape)
        target = _target(out, shape, job.dtype, job.x1.device)
        # Method and tiles are part of it: tiles of one way of computing do not fit another to the last bit.
        kept = engines.Checkpoint.at(checkpoint, lambda: (
            {name: p.detach() for name, p in model.named_parameters()}, dict(model.named_buffers()),
            str(model), _settings(model), job.x1, job.x2, str(outputs), sorted(job.tracked.parameters),
            choice.method, choice.side, choice.batch,
        ))  # fmt: skip
        matrix = engines.engine(engine).fill(
            target, _task(job, choice), tiles, symmetric=symmetric, checkpoint=kept, progress=progress
        )
    return matrix if job.select.trace else matrix.permute(2, 3, 0, 1)


def _settings(model: nn.Module) -> dict[str, Any]:
    """What modules hold besides parameters, buffers and modules, where it is plain: a scale, a flag, a tensor."""
    plain = (bool, int, float, complex, str, Tensor, np.ndarray)
    return {
        f"{path}.{name}": value.detach() if isinstance(value, Tensor) else value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, plain)
        or (isinstance(value, tuple | list) and all(isinstance(v, plain) for v in value))
    }


@dataclass(frozen=True)
class _KernelJob:
    """A kernel to compute: what every method needs."""

    model: nn.Module
    tracked: TrackedParameters
    select: Selection
    x1: Tensor
    x2: Tensor
    plan: CallPlan
    dtype: torch.dtype
    run: WholePass | None = None

    @staticmethod
    def of(
        model: nn.Module,
        x1: Tensor,
        x2: Tensor | None,
        outputs: Outputs,
        parameters: ParameterFilter,
        room: int = 0,
    ) -> _KernelJob:
        """``room``: bytes that one run on all inputs may take, where one is enough."""
        _check_inputs(model, x1, x2)
        tracked, select = track(model, parameters), Selection(outputs)
        first = ordinary(x1)
        second = first if x2 is None else ordinary(x2)
        whole = (
            whole_plan(model, tracked, select, first, room) if room and len(first) <= _LARGEST_BATCH else None
        )
        if whole is not None:
            return _KernelJob(model, tracked, select, first, second, whole[0], tracked.dtype, whole[1])
        found = plan(model, tracked, select, probe_rows(first, None if x2 is None else second))
        return _KernelJob(model, tracked, select, first, second, found, tracked.dtype)


def _check_inputs(model: nn.Module, x1: Tensor, x2: Tensor | None) -> None:
    require_evaluation(model)
    for x in (x1, x2):
        if x is not None and (x.dim() < 1 or len(x) == 0):
            raise InvalidValueError(f"Inputs are a batch (n, …) with n ≥ 1, got shape {tuple(x.shape)}.")
    if x2 is not None and x1.shape[1:] != x2.shape[1:]:
        raise InvalidValueError(
            f"Both batches hold the same kind of input; got shapes {tuple(x1.shape)} and {tuple(x2.shape)}."
        )


def _task(job: _KernelJob, choice: MethodChoice) -> Any:
    if choice.method == "layerwise":
        gradients = Gradients(job.model, job.tracked, job.select, job.plan, job.run)
        return LayerwiseTile(gradients, job.x1, job.x2, job.select.trace, choice.batch, choice.room)
    kind = JacobianTile if choice.method == "jacobian" else ProductTile
    return kind(job.model, job.tracked, job.select, job.x1, job.x2)


def choose_method(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    outputs: Outputs = "trace",
    parameters: ParameterFilter = None,
    memory: int | str = "4GB",
) -> MethodChoice:
    """The method that ``"auto"`` takes for a kernel, and why.

    Layerwise, unless the Jacobian of all inputs is smaller than the factors it would be made of (few
    parameters, or all of them used in ways no rule knows), or the factors of two inputs do not fit into the
    budget; then by products.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 512), nn.ReLU(), nn.Linear(512, 1))
    >>> choose_method(net, torch.zeros(10, 4)).method
    'layerwise'
    """
    with torch.inference_mode(False), torch.no_grad():
        return _choose(_KernelJob.of(model, x1, x2, outputs, parameters), "auto", memory)


def _choose(job: _KernelJob, method: KernelMethod, memory: int | str) -> MethodChoice:
    if method not in _METHODS:
        raise InvalidValueError(
            f"A method is one of {', '.join(_METHODS)}, got {method!r}. For estimates from random directions "
            f"see sketch_ntk."
        )
    budget = engines.parse_memory(memory)
    count = sum(p.numel() for p in job.tracked.parameters.values())
    factors = bytes_per_input(job.plan, job.tracked.parameters)
    rows = count * job.plan.outputs * job.dtype.itemsize
    reason = "asked for"
    if method == "auto":
        method, reason = _cheapest(factors, rows, budget)
    longest = max(len(job.x1), len(job.x2))
    entry = job.dtype.itemsize * (1 if job.select.trace else job.plan.outputs**2)
    # A backward pass for each output at once, where inputs do not go through the model as a batch.
    passes = job.plan.saved * (1 + job.plan.outputs)
    if method == "layerwise":
        # Factors of rows, of columns and of the columns before, and a copy where batches are joined.
        side = _largest(4 * factors, 3 * entry, budget // 2, longest)
        batch = _largest(2 * factors + passes, 0, budget // 4, min(side, _LARGEST_BATCH))
        return MethodChoice(method, reason, side, batch, budget // 4)
    if method == "jacobian":
        side = _largest(4 * rows + passes, 3 * entry, budget, longest)
        return MethodChoice(method, reason, side, side, 0)
    side = _largest(4 * job.plan.saved, 3 * entry, budget, min(longest, 256))
    return MethodChoice("ntvp", reason, side, side, 0)


def _cheapest(factors: int, rows: int, budget: int) -> tuple[KernelMethod, str]:
    if 8 * min(rows, factors) > budget:
        kind = "factors" if factors < rows else "Jacobians"
        return "ntvp", (
            f"two inputs' {kind} ({_size(2 * min(rows, factors))}) and their temporaries do not fit into "
            f"{_size(budget)}"
        )
    if rows <= factors:
        return (
            "jacobian",
            f"one input's Jacobian takes {_size(rows)}, no more than its factors ({_size(factors)})",
        )
    return "layerwise", f"one input's factors take {_size(factors)}, its Jacobian {_size(rows)}"


def _largest(each: int, pair: int, budget: int, most: int) -> int:
    """The largest side s ≤ most with each·s + pair·s² ≤ budget, and at least 1."""
    root = math.sqrt(each * each + 4.0 * pair * budget)
    return max(1, min(int(2 * budget / max(each + root, 1)), most))


def _size(number: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number = number / 1000  # type: ignore[assignment]
    return f"{number:.3g} TB"


def _reserve(path: Path, *, new: bool) -> None:
    """Take the file's space on the disk now: writing to a mapped file on a full disk would kill the process."""
    if not hasattr(os, "posix_fallocate"):  # pragma: no cover (macOS, Windows)
        return
    size = path.stat().st_size
    try:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            return  # a file system that can't reserve
        if new:
            path.unlink(missing_ok=True)
        free = shutil.disk_usage(path.parent).free
        raise InvalidValueError(
            f"The kernel takes {_size(size)} in {str(path)!r}, and the disk has {_size(free)} left "
            f"({error.strerror}). Give a place on another disk."
        ) from error


def _target(out: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Any:
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device)
    if isinstance(out, str | Path):
        if Path(out).suffix != ".npy":
            raise InvalidValueError(f"A result is written to a .npy file, got {str(out)!r}.")
        if dtype == torch.bfloat16:
            raise InvalidValueError(
                "A .npy file has no bfloat16; make the model float32, or pass a tensor as out."
            )
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        mode = "r+" if Path(out).exists() else "w+"
        array = np.lib.format.open_memmap(out, mode=mode, dtype=kind, shape=shape)
        _reserve(Path(out), new=mode == "w+")
        if array.shape != shape or array.dtype != kind:
            raise InvalidValueError(
                f"{out} holds a {array.dtype} array of shape {array.shape}, and the kernel is {kind} of shape "
                f"{shape}. Give "
                "another path, or remove the file."
            )
        return array
    if tuple(out.shape) != shape:
        layout = (
            "(n, m)"
            if len(shape) == 2
            else "(K, K, n, m), of which the result is a view with axes (n, m, K, K)"
        )
        raise InvalidValueError(f"out has the shape {layout}: here {shape}, got {tuple(out.shape)}.")
    return out


def layer_contributions(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    parameters: ParameterFilter = None,
    memory: int | str = "4GB",
) -> dict[str, Tensor]:
    """Each parameter's part of the kernel's trace, (n, m) each; they sum to :func:`empirical_ntk`.

    A bias that is used only together with its weight is counted with it; a parameter that no output depends on
    is left out. ``memory`` is the budget, excluding the results.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 1)).double()
    >>> x = torch.randn(3, 2, dtype=torch.float64)
    >>> parts = layer_contributions(net, x)
    >>> torch.allclose(sum(parts.values()), empirical_ntk(net, x))
    True
    """
    with torch.inference_mode(False), torch.no_grad():
        job = _KernelJob.of(model, x1, x2, "trace", parameters)
        choice = _choose(job, "layerwise", memory)
        task = _task(job, choice)
        result: dict[str, Tensor] = {}
        symmetric = x2 is None
        for tile in engines.tiles(len(job.x1), len(job.x2), height=choice.side, symmetric=symmetric):
            for name, part in task.parts(tile).items():
                whole = result.setdefault(name, part.new_empty(len(job.x1), len(job.x2)))
                whole[tile.row_slice, tile.column_slice] = part
                if symmetric:
                    whole[tile.column_slice, tile.row_slice] = part.T
    return result


def sketch_ntk(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    outputs: Outputs = "trace",
    parameters: ParameterFilter = None,
    directions: int = 256,
    generator: torch.Generator | None = None,
    batch: int = 256,
) -> Sketch:
    """The tangent kernel estimated from random directions in parameter space: unbiased, with a standard error
    an entry.

    For models too large for anything exact: memory is a few copies of the parameters, time one forward pass a
    direction. The relative error falls like 1/√directions.

    Examples
    --------
    >>> net = nn.Linear(3, 1, bias=False).double()
    >>> x = torch.eye(3, dtype=torch.float64)
    >>> estimate = sketch_ntk(net, x, directions=400, generator=torch.Generator().manual_seed(0))
    >>> bool(((estimate.value - x).abs() < 5 * estimate.standard_error).all())
    True
    """
    with torch.inference_mode(False), torch.no_grad():
        _check_inputs(model, x1, x2)
        tracked, select = track(model, parameters), Selection(outputs)
        first = ordinary(x1)
        second = None if x2 is None else ordinary(x2)
        select(require_function(model, tracked, probe_rows(first, second)))  # refuses what can't be
        return sketch(
            model, tracked, select, first, second, directions=directions, generator=generator, batch=batch
        )
