"""pytest: mark a test that returns a model, and it passes only if the model is proved bounded.

.. code-block:: python

    @pytest.mark.bounded(input=(1, 8))
    def test_critic():
        return make_critic()

The test returns the model, (model, inputs), or the path of a ``.pt2`` or ``.onnx`` file. Installed with
farfield; imports nothing heavy until a marked test runs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

__all__ = ["pytest_configure", "pytest_pyfunc_call"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "bounded(input=shape or list of shapes, allow_unknown=False): the test returns a model (or model, inputs), "
        "which must be proved bounded for every input",
    )


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test, take the model it returns, and assert that it is bounded."""
    __tracebackhide__ = True
    marker = pyfuncitem.get_closest_marker("bounded")
    if marker is None:
        return None
    import pytest

    names = pyfuncitem._fixtureinfo.argnames
    returned = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    model, inputs = returned if isinstance(returned, tuple) else (returned, None)
    if model is None:
        pytest.fail(
            "A test marked 'bounded' must return the model to prove bounded; this one returned None.",
            pytrace=False,
        )

    from farfield.audit import assert_bounded

    file = isinstance(model, str | os.PathLike)  # which knows its own inputs
    if inputs is None:
        inputs = () if file and marker.kwargs.get("input") is None else _examples(marker.kwargs.get("input"))
    allow_unknown = bool(marker.kwargs.get("allow_unknown", False))
    message = None
    try:
        assert_bounded(model if file else model.eval(), inputs, allow_unknown=allow_unknown)
    except AssertionError as error:
        message = str(error)
    # Outside the except: pytest prints what an error arose from, which says the same. No frame of the test is left.
    if message is not None:
        pytest.fail(message, pytrace=False)
    return True


def _examples(shapes: Any) -> tuple[Any, ...]:
    import pytest
    import torch

    if shapes is None:
        pytest.fail(
            "Say what the model takes: @pytest.mark.bounded(input=(1, 8)), or return (model, inputs).",
            pytrace=False,
        )
    several = shapes if shapes and not isinstance(shapes[0], int) else [shapes]
    return tuple(torch.zeros(tuple(shape)) for shape in several)
