"""The gap along a network: every layer's, in one pass, leaving nothing behind."""

import math
from collections import UserDict

import pytest
import torch
from torch import nn

from farfield.errors import InvalidValueError
from farfield.geometry import gram, isometry_gap, record_isometry
from farfield.nn import MLP


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def by_hand(rows):
    return float(isometry_gap(gram(rows.double())))


def test_every_leaf_in_the_order_of_calls():
    net = MLP(
        5, None, width=40, depth=3, norm="layer", order="post", generator=torch.Generator().manual_seed(0)
    )
    x = draw(6, 5, dtype=torch.float32)
    record = record_isometry(net, x)
    h, expected = x, []
    for module in net:
        h = module(h)
        expected.append(by_hand(h.detach()))
    torch.testing.assert_close(
        record.gaps, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12
    )
    assert record.kinds[:3] == ("Linear", "ReLU", "LayerNorm") and set(record.rows) == {6}


def test_pictures_are_flattened_and_features_come_in_pieces(monkeypatch):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 7)).double()
    x = draw(5, 3, 8, 8)
    whole = record_isometry(net, x)
    monkeypatch.setattr("farfield.geometry._record._PIECE", 5 * 11)
    torch.testing.assert_close(record_isometry(net, x).gaps, whole.gaps, rtol=1e-12, atol=0)
    assert whole.gaps[0] == pytest.approx(by_hand(net[0](x).flatten(1).detach()), rel=1e-12)


def test_tokens():
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0).double().eval()
    x = draw(3, 7, 16)
    record = record_isometry(block, x, axis="token", layers=nn.LayerNorm)
    assert record.names == ("norm1", "norm2") and record.rows == (7, 7)
    expected = sum(by_hand(sequence) for sequence in block(x).detach()) / 3
    assert record.gaps[1] == pytest.approx(expected, rel=1e-9)
    assert record_isometry(block, x, axis="token", layers=nn.LayerNorm, most_rows=4).rows == (4, 4)


def test_a_module_called_twice_is_listed_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4).double()

        def forward(self, x, *, scale):
            return self.layer(scale * self.layer(x)), "not a tensor"

    record = record_isometry(Twice(), {"x": draw(3, 4), "scale": 2.0})
    assert record.names == ("layer", "layer") and record.gaps[0] != record.gaps[1]


def test_what_has_no_gap_is_nan_and_what_is_singular_infinite():
    class Spoil(nn.Module):
        def forward(self, x):
            return x * torch.tensor([math.nan])

    record = record_isometry(nn.Sequential(nn.Linear(2, 9).double(), nn.Tanh(), Spoil()), draw(4, 2))
    assert math.isnan(record.gaps[2]) and math.isfinite(record.gaps[1])
    flat = nn.Linear(2, 9, bias=False).double()
    assert math.isinf(record_isometry(flat, draw(4, 2)).gaps[0])  # four points of a plane


def test_nothing_stays_behind():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double().train()
    record_isometry(net.eval(), draw(5, 3))
    assert not net.training and not any(m._forward_hooks for m in net.modules())
    assert all(p.grad is None for p in net.parameters())

    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3).double()

        def forward(self, x):
            self.inner(x)
            raise RuntimeError("on the way")

    model = Fails()
    with pytest.raises(RuntimeError, match="on the way"):
        record_isometry(model, draw(5, 3))
    assert not model.inner._forward_hooks


def test_errors_teach():
    net = nn.Sequential(nn.Linear(3, 4)).double()
    with pytest.raises(InvalidValueError, match="no module named missing"):
        record_isometry(net, draw(2, 3), layers=["missing"])
    with pytest.raises(InvalidValueError, match="LayerNorm"):
        record_isometry(net, draw(2, 3), layers=nn.LayerNorm)
    with pytest.raises(InvalidValueError, match="samples, tokens, features"):
        record_isometry(net, draw(2, 3), axis="token")


def test_one_name_is_a_name_and_not_its_letters():
    net = nn.Sequential()
    net.add_module("norm", nn.LayerNorm(8))
    x = draw(3, 8, dtype=torch.float32)
    assert record_isometry(net, x, layers="norm").names == record_isometry(net, x, layers=["norm"]).names


def test_any_mapping_of_arguments():
    class Encoding(UserDict):
        """As tokenizers return them: a mapping, and no dict."""

    x = draw(3, 8)
    record = record_isometry(nn.Identity(), Encoding(input=x))
    assert record.gaps[0] == pytest.approx(by_hand(x), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e170, 1e300])
def test_no_scale_hides_the_gap(scale):
    """Squares of these leave float64, the gap does not."""
    x = draw(4, 9)
    assert record_isometry(nn.Identity(), x * scale).gaps[0] == pytest.approx(by_hand(x), rel=1e-12)


def test_rows_there_are_none_of():
    for most in (0, -1):
        with pytest.raises(InvalidValueError, match="most_rows"):
            record_isometry(nn.Identity(), draw(4, 9), most_rows=most)
    with pytest.raises(InvalidValueError, match="No layer gave rows"):
        record_isometry(nn.Identity(), draw(0, 9))


def test_rank_and_cosine_by_hand():
    x = draw(6, 9, seed=3)
    record = record_isometry(nn.Identity(), x)
    share = torch.linalg.svdvals(x) ** 2
    share = share / share.sum()
    assert float(record.ranks[0]) == pytest.approx(math.exp(-float((share * share.log()).sum())), rel=1e-12)
    unit = x / x.norm(dim=1, keepdim=True)
    pairs = [float(unit[i] @ unit[j]) for i in range(6) for j in range(6) if i != j]
    assert float(record.cosines[0]) == pytest.approx(sum(pairs) / 30, rel=1e-12)
    record = record_isometry(nn.Identity(), 5 * torch.eye(4, dtype=torch.float64))
    assert (float(record.gaps[0]), float(record.ranks[0]), float(record.cosines[0])) == (0.0, 4.0, 0.0)
    same = torch.ones(4, 3) * torch.arange(1.0, 5.0)[:, None]
    record = record_isometry(nn.Identity(), same)
    assert math.isinf(record.gaps[0]) and float(record.ranks[0]) == pytest.approx(1.0, abs=1e-10)
    assert float(record.cosines[0]) == pytest.approx(1.0)
    assert math.isnan(record_isometry(nn.Identity(), draw(1, 3)).cosines[0])  # no pairs
    some = draw(4, 5)
    some[2] = 0
    assert float(record_isometry(nn.Identity(), some).ranks[0]) < 3.0 + 1e-12


def test_padding_is_left_out():
    """As each text by itself, whatever stands in the padding."""
    x, mask = draw(3, 6, 5), torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    x[mask == 0] = 1e6
    record = record_isometry(nn.Identity(), x, axis="token", mask=mask)
    alone = [
        record_isometry(nn.Identity(), x[i : i + 1, : int(mask[i].sum())], axis="token") for i in range(2)
    ]
    alone.append(record_isometry(nn.Identity(), x[2:], axis="token"))
    for name in ("gaps", "ranks", "cosines"):
        mean = sum(float(getattr(one, name)[0]) for one in alone) / 3
        assert float(getattr(record, name)[0]) == pytest.approx(mean, rel=1e-12)
    assert record.rows == (6,)
    for wrong in (torch.ones(3, 6, 1), torch.zeros(3, 6)):
        with pytest.raises(InvalidValueError, match="mask is for tokens"):
            record_isometry(nn.Identity(), x, axis="token", mask=wrong)
    with pytest.raises(InvalidValueError, match="mask is for tokens"):
        record_isometry(nn.Identity(), x, mask=mask)


def test_it_prints_as_a_table():
    net = nn.Sequential(nn.Linear(3, 16), nn.LayerNorm(16), nn.Linear(16, 1)).double()
    lines = str(record_isometry(net, draw(4, 3))).splitlines()
    assert lines[0].split() == ["layer", "kind", "rows", "isometry", "gap", "rank", "mean", "cosine"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["0", "Linear", "4"],
        ["1", "LayerNorm", "4"],
        ["2", "Linear", "4"],
    ]
    assert lines[3].split()[3] == "inf" and len({len(line) for line in lines}) == 1
    assert "(model)" in str(record_isometry(nn.Identity(), draw(2, 3)))


def test_features_are_rows_of_their_own():
    """Corollary 3 is about C = XᵀX: BatchNorm brings its rows to one length, and so never widens the gap."""
    x = draw(50, 6) * torch.tensor([1.0, 10.0, 0.1, 3.0, 1.0, 1.0], dtype=torch.float64)
    net = nn.Sequential(nn.Identity(), nn.BatchNorm1d(6, affine=False, eps=1e-12)).double()
    record = record_isometry(net, x - x.mean(0), axis="feature")
    assert record.rows == (6, 6)
    assert record.gaps[0] == pytest.approx(by_hand((x - x.mean(0)).T), rel=1e-12)
    assert float(record.gaps[1]) < float(record.gaps[0])
    pictures = draw(4, 3, 5, 5)
    channels = record_isometry(nn.Identity(), pictures, axis="feature")
    assert channels.rows == (3,)
    assert channels.gaps[0] == pytest.approx(by_hand(pictures.movedim(1, 0).flatten(1)), rel=1e-12)
    with pytest.raises(InvalidValueError, match="axis sample, token, feature; got 'column'"):
        record_isometry(net, x, axis="column")
    with pytest.raises(InvalidValueError, match="No layer gave rows"):
        record_isometry(nn.Flatten(0), draw(4, 3), axis="feature")


def test_an_exported_program_has_the_modules_layers():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(3, 16), nn.LayerNorm(16)

        def forward(self, x, *, scale):
            return scale * torch.relu(self.norm(self.first(x)))

    net, x, scale = Functional().double(), draw(4, 3), torch.tensor(2.0, dtype=torch.float64)
    program = torch.export.export(net, (x,), {"scale": scale}).module()
    record = record_isometry(program, {"x": x, "scale": scale})
    known = record_isometry(net, {"x": x, "scale": scale})
    found = dict(zip(record.names, record.gaps.tolist(), strict=True))
    for name, gap in zip(known.names, known.gaps.tolist(), strict=True):
        assert found[name] == pytest.approx(gap, rel=1e-12)
    # What a module's hooks don't see: functions between modules.
    assert record.kinds == ("linear", "layer_norm", "relu", "mul")
    assert record.gaps[2] == pytest.approx(by_hand(torch.relu(net.norm(net.first(x))).detach()), rel=1e-12)
