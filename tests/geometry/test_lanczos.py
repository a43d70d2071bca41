"""Ends of a spectrum from products alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farfield.errors import InvalidValueError
from farfield.geometry.spectrum import lanczos


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 40), st.integers(0, 1000))
def test_run_to_the_end_it_finds_both_ends(n, seed):
    half = torch.randn(n, n, dtype=torch.float64, generator=generator(seed))
    matrix = half + half.T
    found = lanczos(lambda v: matrix @ v, n, generator(1), steps=n)
    values = torch.linalg.eigvalsh(matrix)
    scale = float(values.abs().max())
    assert abs(found.smallest.value - float(values[0])) <= found.smallest.error + 1e-12 * scale
    assert abs(found.largest.value - float(values[-1])) <= found.largest.error + 1e-12 * scale
    assert max(found.smallest.error, found.largest.error) < 1e-7 * scale + 1e-12
    assert found.steps <= n


def test_an_early_answer_knows_that_it_is_early():
    values = torch.logspace(-6, 0, 300, dtype=torch.float64)
    found = lanczos(lambda v: values * v, 300, generator(2), steps=15)
    assert found.steps == 15
    assert abs(found.largest.value - 1.0) <= found.largest.error
    assert found.smallest.value - found.smallest.error < 1e-6 < found.smallest.value
    assert found.smallest.error > 1e-5  # far from the true end, and said so


def test_only_the_ends_that_are_asked_for_must_converge():
    values = torch.linspace(0.0, 1.0, 120, dtype=torch.float64) ** 4
    both = lanczos(lambda v: values * v, 120, generator(), steps=120, tolerance=1e-8)
    one = lanczos(lambda v: values * v, 120, generator(), steps=120, tolerance=1e-8, ends=("largest",))
    assert one.steps < both.steps
    assert abs(one.largest.value - 1.0) < 1e-8


def test_a_multiple_of_the_identity_and_refusals():
    found = lanczos(lambda v: 3 * v, 20, generator())
    assert found.steps == 1 and found.smallest.value == pytest.approx(3.0, rel=1e-14)
    with pytest.raises(InvalidValueError, match="at least one row"):
        lanczos(lambda v: v, 0, generator())
