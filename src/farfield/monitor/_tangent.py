"""Whether a value function in training excites itself: the spectrum of its tangent kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError
from farfield.monitor._looks import Monitor
from farfield.ntk import empirical_ntk

__all__ = ["TangentMonitor"]


class TangentMonitor(Monitor):
    r"""The largest eigenvalue of γ Θ(X′, X) − Θ(X, X): above 0, errors of a value function feed themselves.

    A step of temporal differences moves the errors u = Q(X) − r − γ Q(X′) by u ← (I + η A) u, to first order in the
    learning rate η, with A = γ Θ(X′, X) − Θ(X, X) and Θ the tangent kernel of Q as it stands. If an eigenvalue of A
    has a real part above 0, the error along it grows: values diverge while it stays so.
    ``tangent/eigenvalue`` is the largest real part, ``tangent/relative`` the same over the largest eigenvalue of
    Θ(X, X), which has no units. Both are NaN once the gradients are not finite.

    Parameters
    ----------
    model
        Q: one input, or several as (observation, action); an output per row. Only looked at.
    inputs, next_inputs
        X, rows of the data, and X′, where each of them leads: (s, a) and (s′, a′) with the action that the policy
        takes now. A function without arguments is asked at every look, since the policy moves.
    discount
        γ in [0, 1].
    every
        Steps between looks.
    rows
        The first so many rows count.

    Notes
    -----
    An indicator, not a proof. It takes the squared error, plain gradient descent, the network itself as its target
    (a slow target network delays what it says), a kernel that changes slowly, and a batch that stands for the data.
    Momentum and Adam move along other directions; the sign has been seen to tell divergence in experiments all the
    same. ``print`` says this too.

    Cost: gradients of 2 × ``rows`` outputs and the eigenvalues of a matrix of ``rows``.

    References
    ----------
    Yue et al. 2023, arXiv 2310.04411 (their SEEM is ``tangent/eigenvalue``).

    Examples
    --------
    >>> q = nn.Linear(2, 1, bias=False)  # the two-state example: values w and 2w, and w leads to 2w
    >>> x, after = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]])
    >>> round(TangentMonitor(q, x, after, discount=0.9).scalars()["tangent/eigenvalue"], 3)  # 0.9 · 2 − 1
    0.8
    """

    limits = (
        "An indicator, not a proof: first order in the learning rate, plain gradient descent on the squared error, "
        "no slow target network, a tangent kernel that changes slowly, and these rows for all data."
    )

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        next_inputs: Any | Callable[[], Any],
        *,
        discount: float = 0.99,
        every: int = 100,
        rows: int = 64,
    ) -> None:
        super().__init__(model, every)
        if not 0.0 <= discount <= 1.0:
            raise InvalidValueError(f"A discount lies in [0, 1], got {discount!r}.")
        if rows < 1:
            raise InvalidValueError(f"rows is how many rows to look at, at least 1; got {rows}.")
        self.discount, self._rows = discount, rows
        self._inputs, self._next = inputs, next_inputs

    def _look(self) -> dict[str, float]:
        given = self._inputs() if _asked(self._inputs) else self._inputs
        after = self._next() if _asked(self._next) else self._next
        first, second = (_as_tuple(value, self._rows) for value in (given, after))
        if [t.shape for t in first] != [t.shape for t in second]:
            raise InvalidValueError(
                "Each row leads to a row of the same kind; the inputs have the shapes "
                f"{[tuple(t.shape) for t in first]}, what follows {[tuple(t.shape) for t in second]}."
            )
        n = len(first[0])
        joined = [torch.cat(pair) for pair in zip(first, second, strict=True)]
        kernel = empirical_ntk(
            _OneInput(self.model, joined), torch.cat([t.flatten(1) for t in joined], 1)
        ).double()
        if not bool(torch.isfinite(kernel).all()):  # it has diverged; eigenvalue routines may crash on NaN
            return {"tangent/eigenvalue": math.nan, "tangent/relative": math.nan}
        own, crossed = kernel[:n, :n], kernel[n:, :n]
        largest = float(torch.linalg.eigvals(self.discount * crossed - own).real.max())
        scale = float(torch.linalg.eigvalsh(own)[-1])
        return {
            "tangent/eigenvalue": largest,
            "tangent/relative": largest / scale if scale > 0 else 0.0,
        }

    def __str__(self) -> str:
        return f"TangentMonitor, every {self.every} steps, discount {self.discount:g}. {self.limits}"


def _asked(value: Any) -> bool:
    return callable(value) and not isinstance(value, Tensor)


def _as_tuple(value: Any, rows: int) -> tuple[Tensor, ...]:
    parts = value if isinstance(value, (tuple, list)) else (value,)
    if not all(isinstance(t, Tensor) and t.is_floating_point() and t.ndim for t in parts):
        raise InvalidValueError(
            "A value function's inputs are tensors of real numbers, one row for each state."
        )
    return tuple(t[:rows].detach() for t in parts)


class _OneInput(nn.Module):
    """A model of several inputs as one of a single row: the parts side by side."""

    def __init__(self, model: nn.Module, parts: list[Tensor]) -> None:
        super().__init__()
        self.model = model
        self.shapes = [tuple(t.shape[1:]) for t in parts]
        self.sizes = [t[0].numel() for t in parts]
        self.training = False

    def forward(self, joined: Tensor) -> Tensor:
        pieces = joined.split(self.sizes, 1)
        result = self.model(*(p.reshape(len(p), *s) for p, s in zip(pieces, self.shapes, strict=True)))
        found: Tensor = result[0] if isinstance(result, (tuple, list)) else result
        return found
