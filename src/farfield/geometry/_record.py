"""Isometry gap, rank and alignment of the rows at every layer of a network, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, fx, nn

from farfield.errors import InvalidValueError
from farfield.geometry._isometry import gap_of_spectrum, relative_spectrum

__all__ = ["IsometryRecord", "record_isometry"]

Axis: TypeAlias = Literal["sample", "token", "feature"]
_Shape: TypeAlias = tuple[float, float, float]
Look: TypeAlias = "Callable[[str, str, Any], None]"
"""Is told a layer's name, its kind and its output."""
_UNUSABLE: _Shape = (float("nan"), float("nan"), float("nan"))
_PIECE = 2**22
"""Numbers of an activation that are converted to float64 at once: 32 MB."""


@dataclass(frozen=True)
class IsometryRecord:
    """Isometry gaps along a network, in the order of its calls.

    Parameters
    ----------
    names
        Of the modules; one that is called again is listed again.
    kinds
        Their types.
    gaps
        −log isometry of the Gram matrix of each output, float64; the mean over sequences where tokens are compared.
        ∞ for a singular matrix, NaN where an output was not finite or zero.
    rows
        How many samples, or tokens, each matrix compares; the longest sequence's where a mask leaves some out.
    ranks
        exp(−Σ p log p) with p the eigenvalues over their sum: in how many directions the rows spread, from 1 to
        ``rows``. Means and NaN as for the gaps, in all three.
    cosines
        The mean cosine between two different rows: near 1 where all rows point the same way, whatever their sizes.
        NaN for one row.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    gaps: Tensor
    rows: tuple[int, ...]
    ranks: Tensor
    cosines: Tensor

    def __str__(self) -> str:
        """A table, a line for each call."""
        head = ("layer", "kind", "rows", "isometry gap", "rank", "mean cosine")
        values = zip(self.gaps.tolist(), self.ranks.tolist(), self.cosines.tolist(), strict=True)
        lines = [
            (name or "(model)", kind, str(rows), *(f"{v:.4g}" for v in found))
            for name, kind, rows, found in zip(self.names, self.kinds, self.rows, values, strict=True)
        ]
        wide = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
        return "\n".join(
            "  ".join(
                w.ljust(n) if k < 2 else w.rjust(n) for k, (w, n) in enumerate(zip(line, wide, strict=True))
            )
            for line in (head, *lines)
        )


def record_isometry(
    model: nn.Module,
    batch: Any,
    *,
    layers: type[nn.Module] | tuple[type[nn.Module], ...] | str | Iterable[str] | None = None,
    axis: Axis = "sample",
    most_rows: int | None = None,
    mask: Tensor | None = None,
) -> IsometryRecord:
    r"""Run a model once and say how close to orthogonal its representation is after every layer.

    At each chosen module the Gram matrix of the output's rows is formed, its gap taken, and nothing kept but the
    number: memory beyond the forward pass is one n × n matrix and 32 MB. Gradients are off, the mode of the model
    (training or evaluation) is left as it is, and no hook stays behind.

    Parameters
    ----------
    model
        Any module; of an exported program's module every operation is looked at. Files, tables and other data:
        :func:`farfield.record_isometry`.
    batch
        What it is called with: a tensor, a tuple of arguments or a mapping of them by name, as tokenizers
        return it.
    layers
        A type of modules or several, a name as ``named_modules`` has it or several; every module without children by
        default.
    axis
        ``"sample"``: rows are the samples, all else is flattened, and modules whose output has another first axis are
        passed over. ``"token"``: outputs of shape (samples, tokens, features), a matrix of tokens for each sample.
        Padding counts as tokens unless ``mask`` says what it is. ``"feature"``: rows are the features, or the
        channels of images (the second axis, as for BatchNorm) over all samples: what BatchNorm brings to one length.
    most_rows
        Compare only the first so many samples or tokens, at least one; features are all compared.
    mask
        For tokens: (samples, tokens), non-zero for tokens and 0 for padding, as tokenizers' ``attention_mask``.

    Returns
    -------
    IsometryRecord
        Cost beside the forward pass: n²·d operations a layer and one eigenvalue problem of size n.

    References
    ----------
    [P2] Figures 2, C.4 and C.5; Corollary 3 for features.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(8, 256), nn.LayerNorm(256))
    >>> record = record_isometry(net, torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))
    >>> record.names, record.rows
    (('0', '1'), (4, 4))
    """
    if axis not in get_args(Axis):
        raise InvalidValueError(
            f"Rows are compared along the axis {', '.join(get_args(Axis))}; got {axis!r}."
        )
    if most_rows is not None and most_rows < 1:
        raise InvalidValueError(f"A Gram matrix has one row or more, got most_rows={most_rows}.")
    if mask is not None and (axis != "token" or mask.ndim != 2 or not bool(mask.any(1).all())):
        raise InvalidValueError(
            f"A mask is for tokens: axis='token', shape (samples, tokens), a token in every sample; got "
            f"axis={axis!r} and shape {tuple(mask.shape)}."
        )
    arguments, keywords = _arguments(batch)
    count = _count(arguments, keywords)
    found: list[tuple[str, str, int, _Shape]] = []

    def look(name: str, kind: str, output: Any) -> None:
        rows = _rows(output, axis, count)
        if rows is None or (mask is not None and rows.shape[:2] != mask.shape):
            return
        chosen = (
            list(rows)
            if mask is None
            else [x[m.to(x.device).bool()] for x, m in zip(rows, mask, strict=True)]
        )
        chosen = chosen if axis == "feature" else [x[:most_rows] for x in chosen]
        found.append((name, kind, max(map(len, chosen)), _shape(chosen)))

    with torch.no_grad():
        if layers is None and isinstance(model, fx.GraphModule):
            _Looking(model, look).run(*arguments, *_in_order(model, keywords, len(arguments)))
        else:
            _run_hooked(model, _chosen(model, layers), look, arguments, keywords)
    if not found:
        raise InvalidValueError(
            f"No layer gave rows to compare along the axis {axis!r}: samples and features need a first axis as long "
            "as the batch, tokens an output of shape (samples, tokens, features)."
        )
    names, kinds, sizes, shapes = zip(*found, strict=True)
    gaps, ranks, cosines = torch.tensor(shapes, dtype=torch.float64).unbind(-1)
    return IsometryRecord(names, kinds, gaps, sizes, ranks, cosines)


def _run_hooked(
    model: nn.Module,
    chosen: Iterable[tuple[str, nn.Module]],
    look: Look,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> None:
    handles = [
        module.register_forward_hook(lambda m, _, output, name=name: look(name, type(m).__name__, output))
        for name, module in chosen
    ]
    try:
        model(*arguments, **keywords)
    finally:
        for handle in handles:
            handle.remove()


def _in_order(model: fx.GraphModule, keywords: dict[str, Any], first: int) -> list[Any]:
    """Values by name in the order of a program's inputs."""
    names = [str(node.target) for node in model.graph.nodes if node.op == "placeholder"][first:]
    if set(names) != set(keywords):
        raise InvalidValueError(
            f"The program takes {', '.join(names) or 'no more inputs'} by name; got {', '.join(keywords) or 'none'}."
        )
    return [keywords[name] for name in names]


class _Looking(fx.Interpreter):
    """Runs an exported program, and looks at the result of every operation under its module's name."""

    def __init__(self, model: fx.GraphModule, look: Look) -> None:
        super().__init__(model)
        self._look = look

    def run_node(self, n: fx.Node) -> Any:
        """As the base class, with a look."""
        output = super().run_node(n)
        if n.op == "call_function":
            stack = list(n.meta.get("nn_module_stack", {}).values())
            kind = getattr(n.target, "_opname", getattr(n.target, "__name__", str(n.target)))
            self._look((stack and stack[-1][0]) or n.name, kind, output)
        return output


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (batch if isinstance(batch, tuple) else (batch,)), {}


def _count(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> int | None:
    """How many samples there are: the first axis of the first tensor."""
    tensors = (v for v in (*arguments, *keywords.values()) if isinstance(v, Tensor) and v.ndim > 0)
    first = next(tensors, None)
    return None if first is None else len(first)


def _chosen(
    model: nn.Module, layers: type[nn.Module] | tuple[type[nn.Module], ...] | str | Iterable[str] | None
) -> list[tuple[str, nn.Module]]:
    every = dict(model.named_modules())
    if layers is None:
        return [(name, module) for name, module in every.items() if not any(True for _ in module.children())]
    wanted = (layers,) if isinstance(layers, (type, str)) else tuple(layers)
    types = tuple(kind for kind in wanted if isinstance(kind, type))
    names = {name for name in wanted if isinstance(name, str)}
    unknown = names - set(every)
    if unknown:
        raise InvalidValueError(
            f"The model has no module named {', '.join(sorted(unknown))}; it has {', '.join(list(every)[1:13])}…"
        )
    chosen = [(name, module) for name, module in every.items() if isinstance(module, types) or name in names]
    if not chosen:
        raise InvalidValueError(f"The model has no module of the types {[kind.__name__ for kind in types]}.")
    return chosen


def _rows(output: Any, axis: str, count: int | None) -> Tensor | None:
    """Shape (matrices, rows, features), or None for an output that has no such rows."""
    if isinstance(output, (tuple, list)):
        output = next((o for o in output if isinstance(o, Tensor)), None)
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.numel() == 0:
        return None
    if axis == "feature":
        usable = output.ndim > 1 and len(output) == count
        return output.movedim(1, 0).reshape(1, output.shape[1], -1) if usable else None
    if axis == "token":
        return output if output.ndim == 3 else None
    return output.reshape(1, len(output), -1) if output.ndim > 1 and len(output) == count else None


def _shape(matrices: list[Tensor]) -> _Shape:
    """The means over matrices X of gap, rank and cosine of X Xᵀ, in float64, features piece by piece."""
    found: list[_Shape] = []
    for x in matrices:
        step = max(1, _PIECE // len(x))
        low, high = x.aminmax()
        largest = max(-float(low), float(high))
        # None of the three has units: only where squares would leave float64's range.
        unit = 1.0 if 1e-140 < largest < 1e140 or not 0 < largest < float("inf") else largest
        gram = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
        for start in range(0, x.shape[1], step):
            piece = x[:, start : start + step].double()
            piece = piece if unit == 1.0 else piece / unit
            gram.addmm_(piece, piece.mT)
        usable = bool(torch.isfinite(gram).all()) and bool(gram.any())
        if not usable:
            found.append(_UNUSABLE)
            continue
        ratio, excess, dead = relative_spectrum(gram)
        share = ratio.clamp_min(0.0) / ratio.clamp_min(0.0).sum()
        spread = torch.exp(-torch.special.xlogy(share, share).sum())
        found.append((float(gap_of_spectrum(ratio, excess, dead)), float(spread), _mean_cosine(gram)))
    gap, rank, cosine = (sum(values) / len(found) for values in zip(*found, strict=True))
    return gap, rank, cosine


def _mean_cosine(gram: Tensor) -> float:
    """Over pairs of different rows; a row of zeros counts as at right angles to all others."""
    n = len(gram)
    if n == 1:
        return float("nan")
    length = gram.diagonal().clamp_min(0.0).sqrt()
    unit = torch.where(length > 0, 1.0 / length, 0.0)
    cosine = gram * unit[:, None] * unit
    return float((cosine.sum() - cosine.diagonal().sum()) / (n * (n - 1)))
