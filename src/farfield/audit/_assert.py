"""One line for a test suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from farfield.audit._audit import audit
from farfield.audit._result import Audit
from farfield.growth import Status

__all__ = ["assert_bounded"]


def assert_bounded(
    model: nn.Module | str | Path, example_inputs: Any = (), *, allow_unknown: bool = False
) -> Audit:
    """Raise AssertionError unless every output of the model is proved bounded on all of Rⁿ.

    The message is what ``print`` shows of the audit: escape path, slope, and the fix as a line of code.

    Parameters
    ----------
    model, example_inputs
        As for :func:`farfield.audit.audit`.
    allow_unknown
        Let UNKNOWN pass; by default only a proof does.

    Returns
    -------
    Audit
        The audit, for further assertions.

    Examples
    --------
    >>> import torch
    >>> _ = assert_bounded(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1)), torch.zeros(1, 4))
    """
    __tracebackhide__ = True  # pytest shows the line that called this one, not this one
    result = audit(model, example_inputs, rays=0)
    if result.verdict is Status.BOUNDED or (allow_unknown and result.verdict is Status.UNKNOWN):
        return result
    raise AssertionError(f"The model is not proved bounded.\n\n{result}")
