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


class Sorted(nn.Module):
    """Rows sent to experts in pieces as large as the routing says, as mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.route = nn.LayerNorm(5), nn.Linear(5, 2)
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x):
        x = self.norm(x)
        chosen = self.route(x).argmax(-1)
        gates = torch.zeros(len(x), 2, dtype=x.dtype).scatter(1, chosen[:, None], 1)
        sizes = gates.long().sum(0).tolist()
        pieces = x[chosen.argsort()].split(sizes, dim=0)
        return torch.cat([self.first(pieces[0]), self.second(pieces[1])])


class UpToHere(nn.Module):
    """Positions up to a number that is computed, and divided, from a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(7))
        self.norm, self.table = nn.LayerNorm(5), nn.Parameter(torch.randn(9, 5))

    def forward(self, x):
        count = self.count.item()
        torch._check(count >= 0)
        torch._check(count <= 9)
        half = count // 2
        return self.norm(x) + self.table[:count].sum(0) + self.table[:half].sum(0)


@pytest.mark.parametrize("model", [Sorted(), UpToHere()])
def test_pieces_are_entries_of_what_is_cut(model):
    found = ff.audit(model.eval(), torch.randn(6, 5, generator=torch.Generator().manual_seed(0)))
    assert found.verdict.name == "BOUNDED", str(found)


def test_an_end_made_of_constants_is_one():
    torch.manual_seed(0)
    found = ff.audit(OfConstants().eval(), torch.randn(2, 4))
    assert found.verdict.name == "BOUNDED"


@pytest.mark.parametrize("model", [Counting(), FewCounted()])
def test_an_end_that_moves_is_never_trusted(model):
    found = ff.audit(model, torch.randn(2, 4, generator=torch.Generator().manual_seed(0)))
    assert found.verdict.name == "UNKNOWN"
    assert "length moves with the input" in " ".join(str(found).split())
