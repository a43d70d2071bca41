"""Where the far field of a model in training is heading, as a few numbers every so many steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from farfield.calibration import flat_rows
from farfield.certify.intervals import propagate
from farfield.errors import FarfieldError, InvalidValueError
from farfield.graph import Program, capture
from farfield.growth import Status, analyze
from farfield.monitor._looks import Monitor, serving

__all__ = ["FarFieldMonitor"]

FAR = 1e9
"""Slopes are differences over this many data radii, in float64: what is bounded has settled, rounding is 1e-15."""
DIRECTIONS, ENTRIES = 32, 1 << 15
"""So many directions, but fewer where inputs are large: a look's rows have so many entries, or eight directions."""


class FarFieldMonitor(Monitor):
    r"""The slope at infinity and sizes far out of a model while it trains.

    The slope is max over fixed directions u of ‖f(2Ru) − f(Ru)‖∞ / R at R = 10⁹ radii of the example, computed in
    float64 by one forward pass: the limit for a network of piecewise linear parts, to rounding. Where the structure
    is proved bounded when the monitor is made (a norm on every path), it is exactly 0, and ``far_field/bound`` is a
    bound of |f| for every input, by plain intervals, where they give one: wide, but a proof; see
    :func:`farfield.certify` for a tight one.

    Parameters
    ----------
    model
        The module as it trains; it is looked at, never changed. Its mode and random numbers are as they were.
    example
        A batch of inputs as the model takes it: a tensor, or a tuple of them. The data's radius is the largest norm
        of a row.
    every
        Steps between looks.

    Notes
    -----
    Cost: one forward pass of 4 × 32 rows in float64 every ``every`` steps (4 × 8 where inputs are large), and one
    audit of the structure at the start.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> watch = FarFieldMonitor(model, torch.randn(8, 3), every=100)
    >>> sorted(watch.step(0))[:2], watch.step(1)
    (['far_field/at_10', 'far_field/at_1000'], {})
    """

    def __init__(self, model: nn.Module, example: Any, *, every: int = 100) -> None:
        super().__init__(model, every)
        if isinstance(example, Mapping):
            example = dict(example)  # what tokenizers return is a mapping of their own
        report = analyze(model, example)
        statuses = [v.status for v in report.verdicts if v.input is None]
        self.bounded = all(status is Status.BOUNDED for status in statuses)
        inputs = [
            leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor) and leaf.is_floating_point()
        ]
        if not inputs:
            raise InvalidValueError("A far field is in a real-valued input, and the example has none.")
        self.radius = (
            math.sqrt(sum(float(flat_rows(t.double()).norm(dim=1).max()) ** 2 for t in inputs)) or 1.0
        )
        self._program = _bounded_program(self.model, example) if self.bounded else None
        draws = torch.Generator().manual_seed(0)
        count = min(DIRECTIONS, max(8, ENTRIES // (4 * sum(t[0].numel() for t in inputs))))
        made = [torch.randn(count, *t.shape[1:], generator=draws, dtype=torch.float64) for t in inputs]
        length = torch.stack([flat_rows(m).square().sum(1) for m in made]).sum(0).sqrt()
        queue = [m / length.reshape(-1, *(1,) * (m.ndim - 1)) for m in made]
        self._directions = tree_map(
            lambda leaf: (
                queue.pop(0) if isinstance(leaf, Tensor) and leaf.is_floating_point() else _first(leaf, count)
            ),
            example,
        )

    @torch.no_grad()
    def _look(self) -> dict[str, float]:
        """Slope, degree of growth, largest |f| at 10 and at 1,000 radii of the data, whether it is proved bounded."""
        state = self._exact_state()
        radii = [10.0, 1e3, FAR, 2 * FAR]
        with _in_double(self.model):
            near, far, once, twice = (self._outputs(state, radius * self.radius) for radius in radii)
        sizes = [float(value.abs().max()) for value in (near, far, once, twice)]
        found = {
            "far_field/at_10": sizes[0],
            "far_field/at_1000": sizes[1],
            "far_field/bounded": float(self.bounded),
            "far_field/slope": 0.0,
            "far_field/degree": 0.0,
        }
        if self._program is not None and _shares(self.model, self._program):
            found["far_field/bound"] = _interval_bound(self._program)
        if not self.bounded:
            found["far_field/slope"] = float((twice - once).abs().max()) / (FAR * self.radius)
            growing = sizes[3] > 1.5 * sizes[2] > 0
            found["far_field/degree"] = (
                math.log2(sizes[3] / sizes[2]) if growing and math.isfinite(sizes[3]) else 0.0
            )
            if not math.isfinite(sizes[3]):
                found["far_field/slope"] = found["far_field/degree"] = math.inf
        return found

    def _exact_state(self) -> dict[str, Tensor]:
        """Parameters and buffers in float64, where the model is; in ordinary memory for devices without float64."""
        return {
            name: (tensor.detach().cpu() if tensor.device.type == "mps" else tensor.detach()).to(
                torch.float64 if tensor.is_floating_point() else tensor.dtype
            )
            for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers())
        }

    def _outputs(self, state: dict[str, Tensor], radius: float) -> Tensor:
        """Every entry of every real-valued output at so far along the directions."""
        device = next((tensor.device for tensor in state.values()), torch.device("cpu"))
        given = tree_map(
            lambda leaf: (
                (radius * leaf if leaf.is_floating_point() else leaf).to(device)
                if isinstance(leaf, Tensor)
                else leaf
            ),
            self._directions,
        )
        args, kwargs = (
            ((), given) if isinstance(given, dict) else (given if isinstance(given, tuple) else (given,), {})
        )
        result = functional_call(self.model, state, args, kwargs)
        leaves = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.is_floating_point()]
        return torch.cat([leaf.reshape(-1).double() for leaf in leaves])


def _bounded_program(model: nn.Module, example: Any) -> Program | None:
    """The model's program on one row, if its constants are the model's own tensors and intervals bound it."""
    one = tree_map(lambda leaf: leaf[:1] if isinstance(leaf, Tensor) and leaf.ndim else leaf, example)
    try:
        with serving(model):
            program = capture(model, one, dynamic_batch=False)
        return program if _shares(model, program) and math.isfinite(_interval_bound(program)) else None
    except FarfieldError:
        return None


def _shares(model: nn.Module, program: Program) -> bool:
    """Whether the program's constants are the model's tensors as they are; what was folded keeps older weights."""
    own = {name: t.data_ptr() for name, t in (*model.named_parameters(), *model.named_buffers())}
    return all(
        own.get(name) == program.constants[node].data_ptr() for node, name in program.constant_names.items()
    )


def _interval_bound(program: Program) -> float:
    """The largest |output| that plain intervals leave possible, for every input."""
    bounds = propagate(program, keep=program.outputs)
    found = 0.0
    for name in program.outputs:
        value = bounds[name]
        for one in value if isinstance(value, tuple) else (value,):
            found = max(found, -float(one.lo.min()), float(one.hi.max()))
    return found


def _first(leaf: Any, count: int) -> Any:
    """Integers and masks of an example, for as many rows as there are directions."""
    if isinstance(leaf, Tensor) and leaf.ndim:
        return leaf[:1].expand(count, *leaf.shape[1:])
    return leaf


@contextmanager
def _in_double(model: nn.Module) -> Iterator[None]:
    """What ``forward`` makes by itself (a first state of zeros) and tensors that are plain attributes in float64.

    Attributes are put back by whoever looks.
    """
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                vars(module)[name] = value.detach().double()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
