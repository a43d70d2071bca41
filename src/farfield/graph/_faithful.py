"""Is the captured program the model? Both are run at small and at very large inputs, and compared.

A capture follows the model's Python code once. A branch on a batch size, on a value read inside ``try``, on the type
of a tensor or on ``torch.compiler.is_compiling()`` is taken as it fell then, and the program says nothing of the
other way. Nothing proved about such a program is proved about the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from farfield.graph._describe import describe
from farfield.graph._node import InputSpec
from farfield.graph._prepare import prepared, quiet, unwrapped
from farfield.graph._program import Program
from farfield.graph._size import SymbolicSize
from farfield.graph._structure import opened
from farfield.graph._unknown import OpaqueNodeError

__all__ = ["call_model", "differs", "spread_rows"]

SCALES = (1.0, 1e3, 1e6, 1e12)
BATCHES = (1, 3)
LARGEST_BATCH = 256
LARGEST_INPUT = 1 << 20
"""Entries of the inputs together, up to which a larger batch is tried on a program that is not large."""
ROUNDINGS = 4.0
"""By how many roundings an input, or the result of an operation, is moved to see what rounding does."""
SHAKES = 2
TOLERANCE = 1e-3
"""Largest difference put down to rounding, relative to the largest entry; for half precision 50 times that."""


def differs(
    model: nn.Module,
    program: Program,
    example_inputs: Any,
    *,
    scales: Sequence[float] = SCALES,
    generator: torch.Generator | None = None,
) -> str | None:
    """Where the module and its program compute something different, in words; ``None`` if no such input was found.

    Both run in the model's own types on the same inputs: the example, random ones at several scales, a batch of 1 and
    of 3 (and of the sizes next to those the capture has conditions on) where the batch axis is open. An entry that
    changes as much when the input is perturbed by a few roundings shows nothing and is left out; of an output that
    random draws reach only the size is compared. Inputs on which the module itself fails show nothing either.

    Parameters
    ----------
    model
        The module that ``program`` was captured from. It is left as it was.
    program
        The captured program.
    example_inputs
        As given to :func:`farfield.graph.capture`.
    scales
        Typical size of the entries of the real inputs tried.
    generator
        Source of the random inputs; one of its own with seed 0 by default.

    Returns
    -------
    str or None
        The input, the two values, and what to look for. Cost: two forward passes per scale, and about six more; of a
        large program ten, the scales being rows of a batch.
    """
    starts = [leaf for leaf in tree_leaves(example_inputs) if isinstance(leaf, Tensor)]
    if program.capture == "modules" or len(starts) != len(program.inputs):
        return None
    inner = unwrapped(model)
    if not isinstance(inner, nn.Module):
        return None
    source = torch.Generator().manual_seed(0) if generator is None else generator
    random = _reached_by_draws(program)
    for said, inputs in _trials(program, starts, scales, source):
        found = _compared(inner, program, example_inputs, inputs, random)
        if found is not None:
            return (
                f"the captured program is not the module: {said}, {found}. The forward takes another way there than "
                "when it was captured: look for a branch on the batch size, on a value, on a tensor's type or on "
                "torch.compiler.is_compiling()"
            )
    return None


def call_model(model: nn.Module, example_inputs: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that a model returns, given its inputs in the structure of the example."""
    queue = list(tensors)
    filled = tree_map(lambda leaf: queue.pop(0) if isinstance(leaf, Tensor) else leaf, example_inputs)
    if isinstance(filled, Tensor):
        result = model(filled)
    elif isinstance(filled, dict):
        result = model(**filled)
    else:
        result = model(*filled)
    return [leaf for leaf in tree_leaves(opened(result)) if isinstance(leaf, Tensor)]


def spread_rows(
    program: Program, starts: Sequence[Tensor], count: int, axis: str | None = None
) -> list[Tensor] | None:
    """The example with ``count`` rows in every input whose first axis is open; ``None`` where it has no rows.

    Rows are taken from the example in turn. An axis tied to another (``2*s0``) keeps its proportion.

    Parameters
    ----------
    axis
        Only inputs whose first axis has this name; all by default.
    """
    tensors = []
    for spec, start in zip(program.inputs, starts, strict=True):
        size = spec.shape[0] if spec.shape else None
        if isinstance(size, SymbolicSize) and axis in (None, str(size)):
            if start.shape[0] == 0:
                return None
            rows = int(size.value(dict.fromkeys(size.symbols, count)))
            start = start[torch.arange(rows, device=start.device) % start.shape[0]]
        tensors.append(start)
    return tensors


def _trials(
    program: Program, starts: Sequence[Tensor], scales: Sequence[float], source: torch.Generator
) -> Iterator[tuple[str, list[Tensor]]]:
    """What is tried, in words and as inputs: cheap and telling ones first."""
    yield "on the example", [start.detach().clone() for start in starts]
    open_axis = any(spec.shape and isinstance(spec.shape[0], SymbolicSize) for spec in program.inputs)
    numbers = {
        int(n) + step
        for guard in program.guards
        for n in re.findall(r"\b\d+\b", guard)
        for step in (-1, 0, 1)
    }
    if not any(spec.kind == "real" for spec in program.inputs):
        scales = scales[:1]
    most = LARGEST_BATCH
    if not program.is_large:
        most = max(most, LARGEST_INPUT // max(1, sum(s[:1].numel() for s in starts if s.ndim)))
    batches = (*BATCHES, *sorted(n for n in numbers - set(BATCHES) if 0 < n <= most)[:9])
    if program.is_large:
        yield from _few_trials(program, starts, scales, batches if open_axis else (0,), source)
        return
    for count in batches if open_axis else (0,):
        rows = spread_rows(program, starts, count)
        if rows is None:
            continue
        for scale in scales if count == batches[0] or not open_axis else scales[::2]:
            inputs = [_drawn(s, row, scale, source) for s, row in zip(program.inputs, rows, strict=True)]
            batch = f" and a batch of {count}" if open_axis else ""
            yield f"at inputs of size {scale:.0e}{batch}", inputs


def _few_trials(
    program: Program,
    starts: Sequence[Tensor],
    scales: Sequence[float],
    batches: Sequence[int],
    source: torch.Generator,
) -> Iterator[tuple[str, list[Tensor]]]:
    """For a large program: every batch once, its rows of the largest scale, the next and so on."""
    wide = torch.tensor(scales[::-1], dtype=torch.float64)
    for count in batches:
        rows = spread_rows(program, starts, count)
        if rows is None:
            continue
        sizes = scales if count == 0 else (wide[torch.arange(count) % len(scales)],)
        for size in sizes:
            inputs = [_drawn(s, row, size, source) for s, row in zip(program.inputs, rows, strict=True)]
            batch = f" in a batch of {count}" if count else ""
            yield f"at inputs of sizes up to {float(torch.as_tensor(size).max()):.0e}{batch}", inputs


def _drawn(spec: InputSpec, start: Tensor, scale: float | Tensor, source: torch.Generator) -> Tensor:
    """Random numbers of this size; of these sizes, row by row, where the input has as many rows."""
    if spec.kind != "real":
        return start.detach().clone()
    wide = torch.complex128 if start.is_complex() else torch.float64
    if isinstance(scale, Tensor):
        fits = start.ndim > 0 and len(start) == len(scale)
        scale = scale.to(wide).reshape(-1, *(1,) * (start.ndim - 1)) if fits else float(scale.max())
    drawn: Tensor = scale * torch.randn(start.shape, generator=source, dtype=wide)
    if not start.is_complex():
        drawn = drawn.clamp(-torch.finfo(start.dtype).max, torch.finfo(start.dtype).max)
    return drawn.to(start.device, start.dtype)


def _compared(
    model: nn.Module, program: Program, example_inputs: Any, inputs: list[Tensor], random: frozenset[str]
) -> str | None:
    try:
        with quiet(), prepared(model), _seeded():
            truth = call_model(model, example_inputs, [t.clone() for t in inputs])
    except Exception:  # the module is not defined there, so nothing is claimed there
        return None
    if len(truth) != len(program.outputs):
        return None
    try:
        found = _evaluated(program, inputs)
    except OpaqueNodeError:
        return None
    except Exception as error:
        return (
            f"the module returns a value and the program fails ({type(error).__name__}: {str(error)[:120]})"
        )
    for name, own, other in zip(program.outputs, truth, (found[n] for n in program.outputs), strict=True):
        if tuple(own.shape) != tuple(other.shape):
            return (
                f"{name} has shape {list(own.shape)} from the module and {list(other.shape)} from the program"
            )
        apart = _apart(own, other, by_size=name in random)
        if apart is None or not bool(apart.any()):
            continue
        lost = ~torch.isfinite(own)
        if bool((apart & lost).any()) and _may_overflow(program, inputs, own.dtype):
            apart = apart & ~lost
        if bool(apart.any()):
            apart = apart & ~_overflows(program, inputs, name, own)
        if name not in random:
            apart = apart & (lost | ~_undecided(program, inputs, name, own, other))
        if bool(apart.any()):
            place = int(apart.flatten().nonzero()[0])
            a, b = (complex(v.flatten()[place]) for v in (own, other))
            return f"{name} is {_number(a)} from the module and {_number(b)} from the program"
    return None


def _apart(own: Tensor, other: Tensor, *, by_size: bool) -> Tensor | None:
    """Entries further apart than rounding, or infinite from the module alone; of random ones only far larger ones."""
    if not own.numel():
        return None
    exact = not (own.is_floating_point() or own.is_complex())
    a, b = (v.detach().to(torch.complex128 if v.is_complex() else torch.float64) for v in (own, other))
    both = torch.isfinite(a) & torch.isfinite(b)
    sizes = [torch.where(both, v.abs(), 0.0).max() for v in (a, b)]
    half = own.dtype in (torch.float16, torch.bfloat16)
    allowed = 0.0 if exact else (50.0 if half else 1.0) * TOLERANCE * torch.maximum(*sizes)
    far = a.abs() > 1e3 * (1.0 + sizes[1]) if by_size else (a - b).abs() > allowed
    return torch.isfinite(b) & (far | ~torch.isfinite(a))


def _may_overflow(program: Program, inputs: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether some value on the way, or its square (norms take squares), is too large for the model's type."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return False
    try:
        with quiet(), _seeded():
            values = tree_leaves(list(program.evaluate(*inputs, dtype=torch.float64).values()))
    except Exception:
        return True
    largest = max(float(v.abs().max()) for v in values if isinstance(v, Tensor) and v.numel())
    return not largest**2 < torch.finfo(dtype).max


def _overflows(program: Program, inputs: Sequence[Tensor], name: str, own: Tensor) -> Tensor:
    """Entries that the module's very operations, before any was recognized, give as the module does, by overflow.

    exp(x)/Σ exp(x) is not finite where softmax is; a variance by hand is infinite in half precision.
    """
    nowhere, raw = torch.zeros(own.shape, dtype=torch.bool, device=own.device), program.raw
    if raw is None:
        return nowhere
    try:
        with quiet(), _seeded():
            values = raw.evaluate(*inputs, dtype=None)
    except Exception:
        return nowhere
    found = values[raw.outputs[program.outputs.index(name)]]
    operations = (values[node.name] for node in raw.nodes if node.role == "operation")
    if all(bool(torch.isfinite(v).all()) for v in tree_leaves(list(operations)) if isinstance(v, Tensor)):
        return nowhere
    apart = _apart(own, found, by_size=False)
    same = ~torch.isfinite(own) & ~torch.isfinite(found)
    return same if apart is None else same | (torch.isfinite(own) & torch.isfinite(found) & ~apart)


class _Shaken(TorchDispatchMode):
    """Moves every result of an operation by a few roundings, up or down at random: what that changes is rounding."""

    def __init__(self, source: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = source

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(r.alias_info is not None for r in func._schema.returns):
            return result  # a view, or written in place: moved where it was computed
        return tree_map(self._moved, result)

    def _moved(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        signs = torch.randint(0, 2, value.shape, generator=self.source).to(value.device, value.dtype)
        return value * (1.0 + ROUNDINGS * torch.finfo(value.dtype).eps * (2.0 * signs - 1.0))


def _undecided(program: Program, inputs: Sequence[Tensor], name: str, own: Tensor, other: Tensor) -> Tensor:
    """Entries that a few roundings of the inputs, or a wider type, move by as much as the two are apart."""
    moved = torch.zeros(other.shape, dtype=torch.float64, device=other.device)
    gap = (own.to(torch.complex128) - other.to(torch.complex128)).abs()
    nudged = []
    for spec, tensor in zip(program.inputs, inputs, strict=True):
        real = spec.kind == "real"
        step = ROUNDINGS * torch.finfo(tensor.dtype).eps if real else 0.0
        sign = torch.ones_like(tensor)
        sign.flatten()[::2] = -1
        nudged.append(tensor * (1.0 + step * sign) if real else tensor)
    place, raw = program.outputs.index(name), program if program.raw is None else program.raw
    shaken: Any = _Shaken(torch.Generator().manual_seed(0))
    plain: Any = nullcontext()
    few: list[tuple[Sequence[Tensor], torch.dtype | None, Any]] = [(inputs, None, shaken)] * SHAKES
    for one, tries in (
        (program, [(nudged, None, plain), (inputs, torch.float64, plain), *few]),
        (raw, [] if raw is program else few),
    ):
        base = other
        for given, dtype, mode in tries:
            try:
                if one is raw:
                    base = _evaluated(raw, inputs)[raw.outputs[place]]
                with mode:
                    value = _evaluated(one, given, dtype)[one.outputs[place]]
            except Exception:
                continue
            if value.shape == base.shape == other.shape:
                change = (value.to(torch.complex128) - base.to(torch.complex128)).abs()
                moved = torch.maximum(moved, change)
    return ~(gap > 4.0 * moved)  # also where either is not a number


def _evaluated(
    program: Program, inputs: Sequence[Tensor], dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    with quiet(), _seeded():
        return program.evaluate(*inputs, dtype=dtype, keep=program.outputs)


def _reached_by_draws(program: Program) -> frozenset[str]:
    reached: set[str] = set()
    for node in program.nodes:
        if not describe(node).deterministic or any(name in reached for name in node.operands):
            reached.add(node.name)
    return frozenset(reached)


@contextmanager
def _seeded() -> Iterator[None]:
    """The same random draws for the module and for the program, without touching the user's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _number(value: complex) -> str:
    return f"{value.real:.4g}" if value.imag == 0.0 else f"{value:.4g}"
