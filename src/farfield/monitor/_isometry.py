"""Whether the representation of a model in training collapses, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from farfield import geometry
from farfield.calibration import Batches, argument_names, fixed_rows
from farfield.errors import InvalidValueError
from farfield.geometry import IsometryRecord
from farfield.graph import Runnable, as_module, untouched
from farfield.monitor._looks import Monitor

__all__ = ["IsometryMonitor", "record_isometry"]


def record_isometry(
    model: Runnable,
    data: Any,
    *,
    layers: type[nn.Module] | tuple[type[nn.Module], ...] | str | Iterable[str] | None = None,
    axis: Literal["sample", "token", "feature"] = "sample",
    most_rows: int | None = None,
    mask: Tensor | None = None,
) -> IsometryRecord:
    """How close to orthogonal the rows of your data are after every layer of your network; ``print`` it for a table.

    What :func:`farfield.geometry.record_isometry` does with a module and a batch, for all kinds of models and data.

    Parameters
    ----------
    model
        A module, in its mode and left as it is; an exported program; or the path of a ``.pt2`` or ``.onnx`` file.
    data
        Rows, as for :func:`farfield.repair`; the first batch of a loader.
    layers, axis, mask
        As there.
    most_rows
        How many rows are taken: 256, or 4096 to compare features. Take fewer than the narrowest layer has features,
        or for features more than the widest has: else the gap is always ∞.

    Examples
    --------
    >>> import torch
    >>> net = nn.Sequential(nn.Linear(8, 256, bias=False), nn.LayerNorm(256))
    >>> rows = torch.eye(8)[:4]
    >>> [record_isometry(net, rows).names, record_isometry(torch.export.export(net, (rows,)), rows).kinds]
    [('0', '1'), ('linear', 'layer_norm')]
    """
    module = as_module(model)
    most = most_rows or (4096 if axis == "feature" else 256)
    if most < 1 or most_rows == 0:
        raise InvalidValueError(f"A Gram matrix has one row or more, got most_rows={most_rows}.")
    arguments, keywords = Batches(data, module, size=fixed_rows(module) or most).some()
    named = dict(zip(argument_names(module), arguments, strict=False)) if keywords else {}
    batch = {**named, **keywords} if keywords else arguments
    with untouched(module):
        return geometry.record_isometry(module, batch, layers=layers, axis=axis, most_rows=most, mask=mask)


class IsometryMonitor(Monitor):
    r"""How close to orthogonal the rows of a batch are after every layer, while the model trains.

    For each layer three numbers of the Gram matrix G of its outputs: ``isometry/gap/<layer>`` is −log of the
    isometry (0 for orthogonal rows of one length, ∞ where rows depend on each other), ``isometry/rank/<layer>`` the
    effective rank exp(−Σ p log p) of its spectrum, ``isometry/collapse/<layer>`` the mean cosine between different
    rows (1: all point the same way). ``isometry/collapse`` is the largest over layers.

    Parameters
    ----------
    model
        The module as it trains; its mode, its hooks and torch's random numbers are as they were.
    batch, layers, axis, mask
        As for :func:`farfield.geometry.record_isometry`; of a mapping with ``attention_mask`` the mask is taken from
        there when tokens are compared.
    every
        Steps between looks.
    most_rows
        Rows, or tokens of a text, that are compared: the first so many.

    Notes
    -----
    Cost: one forward pass of the batch, and n²·d + O(n³) operations a layer, n = ``most_rows``.

    References
    ----------
    [P2] §3; Roy and Vetterli 2007 for the effective rank.

    Examples
    --------
    >>> import torch
    >>> model = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.Linear(64, 64, bias=False))
    >>> watch = IsometryMonitor(model, torch.randn(16, 8), every=50)
    >>> sorted(watch.step(0))[:2]
    ['isometry/collapse', 'isometry/collapse/0']
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        *,
        every: int = 100,
        layers: type[nn.Module] | tuple[type[nn.Module], ...] | str | Iterable[str] | None = None,
        axis: Literal["sample", "token", "feature"] = "sample",
        mask: Tensor | None = None,
        most_rows: int = 32,
    ) -> None:
        super().__init__(model, every)
        self._batch, self._axis, self._most = batch, axis, most_rows
        self._layers: Any = layers if layers is None or isinstance(layers, (type, str)) else tuple(layers)
        if mask is None and axis == "token" and isinstance(batch, Mapping) and "attention_mask" in batch:
            mask = batch["attention_mask"]
        self._mask = mask

    def _look(self) -> dict[str, float]:
        record = geometry.record_isometry(
            self.model,
            _fresh(self._batch),
            layers=self._layers,
            axis=self._axis,
            most_rows=self._most,
            mask=self._mask,
        )
        found: dict[str, float] = {}
        seen: dict[str, int] = {}
        for number, name in enumerate(record.names):
            seen[name] = seen.get(name, 0) + 1
            label = name if seen[name] == 1 else f"{name}#{seen[name]}"  # a module that is called again
            found[f"isometry/gap/{label}"] = float(record.gaps[number])
            found[f"isometry/rank/{label}"] = float(record.ranks[number])
            found[f"isometry/collapse/{label}"] = float(record.cosines[number])
        found["isometry/collapse"] = float(record.cosines.max())
        return found


def _fresh(batch: Any) -> Any:
    """A copy, for models that write into their arguments."""
    if isinstance(batch, Tensor):
        return batch.clone()
    if isinstance(batch, Mapping):
        return {name: _fresh(value) for name, value in batch.items()}
    return tuple(map(_fresh, batch)) if isinstance(batch, tuple) else batch
