"""What torch.fx makes of a repaired model keeps its protections."""

import copy
import io
import pickle

import pytest
import torch
from torch import fx, nn

import farfield as ff

ROWS = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, z):
        return torch.relu(self.inner(z))


class Model(nn.Module):
    """Its cap stands behind a block, or behind a layer of torch's own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.block, self.last = nn.Linear(4, 16), Block(), nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.block(self.first(x)))


class Larger(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return 2 * self.part(x)


@torch.no_grad()
@pytest.mark.parametrize("at", ["first", "block"])
@pytest.mark.parametrize("method", ["auto", "soft"])
def test_traced_it_is_the_repaired_model(at, method):
    fixed = ff.repair(Model().eval(), ROWS, at=at, method=method).model
    x = torch.cat([ROWS[:20], 10 * ROWS[:20], 1e6 * ROWS[:20], torch.full((1, 4), float("nan"))])
    assert isinstance(fixed, Model) and type(fixed).__name__ == "Model"
    for model in (fixed, copy.deepcopy(fixed), pickle.loads(pickle.dumps(fixed)), Larger(fixed)):
        traced = fx.symbolic_trace(model)
        assert torch.equal(traced(x), model(x)) and bool(traced(x).isfinite().all())
        assert [n.op for n in traced.graph.nodes].count("placeholder") == 1
    assert ff.audit(fx.symbolic_trace(fixed), ROWS[:1]).verdict.name == "BOUNDED"


@torch.no_grad()
def test_taken_out_it_is_the_class_it_was():
    repaired = ff.repair(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), ROWS)
    assert type(repaired.undo()) is nn.Sequential
    torch.save(repaired.model, file := io.BytesIO())
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(1e6 * ROWS), repaired.model(1e6 * ROWS))
