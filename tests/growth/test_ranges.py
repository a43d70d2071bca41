"""``arange`` with an end that is computed: known where nothing moves it, never trusted where an input does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import farfield as ff


class OfConstants(nn.Module):
    """As many positions as a buffer says."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.tensor([3, 4]))
        self.table, self.first, self.norm = nn.Embedding(9, 5), nn.Linear(4, 5), nn.LayerNorm(5)

    def forward(self, x):
        return self.norm(self.first(x)) + self.table(torch.arange(self.counts.sum())).sum(0)


class Counting(nn.Module):
    """A bounded function summed over as many numbers as the input says: unbounded."""

    def forward(self, x):
        return torch.sigmoid(torch.arange(x.abs().sum().long()).double()).sum()


class FewCounted(nn.Module):
    """Bounded, which a rule about ends alone does not see."""

    def forward(self, x):
        return torch.arange(torch.sigmoid(x).sum().long() + 1).double().sum()


def test_an_end_made_of_constants_is_one():
    torch.manual_seed(0)
    found = ff.audit(OfConstants().eval(), torch.randn(2, 4))
    assert found.verdict.name == "BOUNDED"


@pytest.mark.parametrize("model", [Counting(), FewCounted()])
def test_an_end_that_moves_is_never_trusted(model):
    found = ff.audit(model, torch.randn(2, 4, generator=torch.Generator().manual_seed(0)))
    assert found.verdict.name == "UNKNOWN"
    assert "length moves with the input" in " ".join(str(found).split())
