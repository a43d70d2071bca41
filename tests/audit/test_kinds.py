"""What the caller knows of an input's values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from farfield.audit import audit
from farfield.errors import InvalidValueError, UnknownNameError
from farfield.graph import capture
from farfield.growth import Status


class Masked(nn.Module):
    """Bounded in x, linear in the mask."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * mask


INPUTS = (torch.randn(2, 3), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("kind", "words"), [("boolean", "zeros and ones"), ("bounded", "declared bounded"), ("integer", "ids")]
)
def test_a_verdict_by_the_callers_word_says_so(kind, words):
    found = audit(Masked(), INPUTS, kinds={"mask": kind})
    assert found.verdict is Status.BOUNDED
    assert any("mask" in a.text and words in a.text for a in found.report.assumptions)


def test_a_mask_has_numbers():
    found = audit(Masked(), INPUTS, kinds={"mask": "boolean"})
    low, high = found.report.verdict().growth.interval
    assert -1.001 < low <= -1.0 and 1.0 <= high < 1.001


def test_without_a_word_or_with_real_it_grows():
    assert audit(Masked(), INPUTS).verdict is Status.UNBOUNDED
    assert audit(Masked(), INPUTS, kinds={"mask": "real"}).verdict is Status.UNBOUNDED


def test_the_other_input_still_grows():
    assert audit(Masked(), INPUTS, kinds={"x": "bounded"}).verdict is Status.UNBOUNDED


def test_words_that_are_wrong():
    with pytest.raises(UnknownNameError, match="kind of input"):
        audit(Masked(), INPUTS, kinds={"mask": "small"})
    with pytest.raises(InvalidValueError, match="kinds names the inputs"):
        audit(Masked(), INPUTS, kinds={"musk": "bounded"})
    with pytest.raises(InvalidValueError, match="captured already"):
        audit(capture(Masked(), INPUTS), INPUTS, kinds={"mask": "bounded"})
