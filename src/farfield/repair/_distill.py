"""A norm put behind a hidden layer: its affine part fitted in closed form, the rest distilled without labels."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from farfield.calibration import Batches, Call, output_tensors, run
from farfield.errors import InvalidValueError
from farfield.repair._insert import Insertion, inserted_into

__all__ = ["distilled_norm"]

EPOCHS = 60
PATIENCE = 8
RATE = 2e-3


@torch.enable_grad()
def distilled_norm(
    model: nn.Module,
    batches: Batches,
    paths: Sequence[str],
    *,
    epochs: int = EPOCHS,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[nn.Module, tuple[Insertion, ...]]:
    """The model with a LayerNorm behind each path, trained to give what it gave before on the calibration rows.

    The norm's weight and bias are first fitted feature by feature (least squares of what was there on the normalized
    values). Then everything is trained by Adam against the old model's outputs on nine tenths of the batches; the
    state that agrees best on the tenth is kept, and training stops after eight epochs without gain. No labels.
    """
    if not paths:
        raise InvalidValueError(
            "There is no submodule behind which a norm would cut every escape path. Name one with at=, or use "
            "method='auto'."
        )
    insertions = tuple(Insertion("hidden", path, _fitted(model, batches, path)) for path in paths)
    student = inserted_into(model, insertions)
    for parameter in student.parameters():
        parameter.requires_grad_(True)
    optimizer = torch.optim.Adam(student.parameters(), RATE)
    pieces = [piece for call in batches for piece in _pieces(call)]
    held = pieces[::10] if len(pieces) >= 10 else pieces[-1:]
    trained = [p for i, p in enumerate(pieces) if i % 10] if len(pieces) >= 10 else pieces
    scale = _scale(model, held)
    best, best_state, waited = math.inf, copy.deepcopy(student.state_dict()), 0
    generator = torch.Generator().manual_seed(0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, epochs)
    for epoch in range(epochs):
        for index in torch.randperm(len(trained), generator=generator).tolist():
            call = trained[index]
            wanted = output_tensors(run(model, call))
            args, kwargs = call
            loss = _loss(output_tensors(student(*args, **kwargs)), wanted, scale)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            error = sum(
                float(_loss(output_tensors(run(student, c)), output_tensors(run(model, c)), scale))
                for c in held
            )
        waited = 0 if error < 0.999 * best else waited + 1
        if error < best:
            best, best_state = error, copy.deepcopy(student.state_dict())
        if progress is not None:
            progress(epoch + 1, epochs)
        if waited >= PATIENCE:
            break
    student.load_state_dict(best_state)
    for parameter, original in zip(model.parameters(), student.parameters(), strict=False):
        original.requires_grad_(parameter.requires_grad)
    return student.eval(), insertions


def _pieces(call: Call, size: int = 128) -> list[Call]:
    args, kwargs = call
    count = next((len(v) for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.ndim), 0)

    def cut(value: Any, start: int) -> Any:
        return value[start : start + size] if isinstance(value, Tensor) and value.ndim else value

    starts = range(0, count, size)
    return [(tuple(cut(a, s) for a in args), {k: cut(v, s) for k, v in kwargs.items()}) for s in starts]


def _fitted(model: nn.Module, batches: Batches, path: str) -> nn.Module:
    """A LayerNorm over the last axis whose affine part reproduces the hidden values as well as it can."""
    sums: list[Tensor] = []

    def gather(module: nn.Module, args: Any, output: Tensor) -> None:
        z = output.detach().to(torch.float64).reshape(-1, output.shape[-1])
        n = nn.functional.layer_norm(z, z.shape[-1:])
        parts = [torch.full_like(z[0], len(z)), n.sum(0), z.sum(0), (n * n).sum(0), (n * z).sum(0)]
        if sums:
            for total, part in zip(sums, parts, strict=True):
                total += part
        else:
            sums.extend(parts)

    handle = model.get_submodule(path).register_forward_hook(gather)
    try:
        for call in batches:
            run(model, call)
    finally:
        handle.remove()
    count, n, z, nn_, nz = sums
    variance = (nn_ / count - (n / count) ** 2).clamp_min(1e-12)
    weight = (nz / count - n * z / count**2) / variance
    bias = z / count - weight * n / count
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    norm = nn.LayerNorm(len(weight), dtype=dtype)
    with torch.no_grad():
        norm.weight.copy_(weight)
        norm.bias.copy_(bias)
    return norm


def _scale(model: nn.Module, held: Sequence[Call]) -> list[Tensor]:
    outputs = [output_tensors(run(model, call)) for call in held]
    return [
        torch.cat([o[i].reshape(len(o[i]), -1) for o in outputs]).std(0).mean().clamp_min(1e-12)
        for i in range(len(outputs[0]))
    ]


def _loss(got: Sequence[Tensor], wanted: Sequence[Tensor], scale: Sequence[Tensor]) -> Tensor:
    terms = [
        ((g - w) / s).square().mean()
        for g, w, s in zip(got, wanted, scale, strict=True)
        if g.is_floating_point()
    ]
    return torch.stack(terms).sum()
