"""A representation in training: what the monitor says is what the record says, and collapse is seen."""

import pytest
import torch
from torch import nn

from farfield.errors import InvalidValueError
from farfield.geometry import record_isometry
from farfield.monitor import IsometryMonitor


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.3, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def test_it_says_what_the_record_says_and_leaves_the_model_as_it_was():
    model, x = encoder().train(), torch.randn(3, 7, 16)
    mask = torch.ones(3, 7)
    mask[0, 4:] = 0
    watch = IsometryMonitor(model, x, every=3, layers=nn.LayerNorm, axis="token", mask=mask)
    random = torch.get_rng_state()
    found = watch.step(3)
    assert torch.equal(torch.get_rng_state(), random) and model.training
    assert all(module.training and not module._forward_hooks for module in model.modules())
    record = record_isometry(model.eval(), x, layers=nn.LayerNorm, axis="token", mask=mask)
    for k, name in enumerate(record.names):
        assert found[f"isometry/gap/{name}"] == float(record.gaps[k])
        assert found[f"isometry/rank/{name}"] == float(record.ranks[k])
        assert found[f"isometry/collapse/{name}"] == float(record.cosines[k])
    assert found["isometry/collapse"] == float(record.cosines.max())
    assert watch.step(4) == {} and all(isinstance(value, float) for value in found.values())


def test_the_mask_of_a_tokenizer_is_taken():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(11, 8)

        def forward(self, input_ids, attention_mask):
            return self.table(input_ids) * attention_mask[..., None]

    ids = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7]])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    found = IsometryMonitor(Encoder(), batch, axis="token", layers="table").scalars()
    same = IsometryMonitor(Encoder(), batch, axis="token", layers="table", mask=torch.ones(2, 4)).scalars()
    assert found["isometry/rank/table"] != same["isometry/rank/table"]


def test_collapse_is_seen_before_it_is_complete():
    """Rows are pulled together by the loss: the mean cosine rises to 1, the rank falls to 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16))
    x = torch.randn(32, 6)
    watch = IsometryMonitor(model, x, every=1, layers="2")
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    history = []
    for step in range(200):
        history.append(watch.step(step))
        optimizer.zero_grad()
        (model(x) - torch.ones(16)).square().mean().backward()
        optimizer.step()
    cosines = [one["isometry/collapse/2"] for one in history]
    ranks = [one["isometry/rank/2"] for one in history]
    assert cosines[0] < 0.5 and cosines[-1] > 0.99 and ranks[-1] < 1.2 < 3 < ranks[0]
    assert next(k for k, c in enumerate(cosines) if c > 0.7) < 100


def test_a_module_that_is_called_again_is_listed_again():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(self.layer(x))

    found = IsometryMonitor(Twice(), torch.randn(5, 4)).scalars()
    assert {"isometry/gap/layer", "isometry/gap/layer#2"} <= set(found)
    with pytest.raises(InvalidValueError, match="at least 1"):
        IsometryMonitor(Twice(), torch.randn(5, 4), every=0)
