"""P1's decoder: against torch's own layers, what it may see, and claims that can fail."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from farfield.errors import InvalidValueError
from farfield.growth import Status, analyze
from farfield.papers.p1 import _decoder, series
from farfield.papers.p1._decoder import Decoder, DecoderBlock

SHAPE = {"dim": 8, "heads": 2, "depth": 1, "hidden": 12, "places": 13}


def decoder(norms="pre", embedding_norm=False, seed=0):
    return Decoder(norms=norms, embedding_norm=embedding_norm, seed=seed, **SHAPE).double().eval()


@pytest.mark.parametrize("norms", ["pre", "post"])
def test_a_block_is_torchs_own_layer(norms):
    torch.manual_seed(0)
    block = DecoderBlock(8, 2, 12, norms).double()
    theirs = nn.TransformerEncoderLayer(
        8, 2, 12, dropout=0.0, batch_first=True, norm_first=norms == "pre", dtype=torch.float64
    )
    pairs = {
        "self_attn.in_proj_weight": block.qkv.weight, "self_attn.in_proj_bias": block.qkv.bias,
        "self_attn.out_proj.weight": block.out.weight, "self_attn.out_proj.bias": block.out.bias,
        "linear1.weight": block.feed[0].weight, "linear1.bias": block.feed[0].bias,
        "linear2.weight": block.feed[2].weight, "linear2.bias": block.feed[2].bias,
        **{f"norm{k}.{p}": getattr(getattr(block, f"norm{k}"), p) for k in (1, 2) for p in ("weight", "bias")},
    }  # fmt: skip
    with torch.no_grad():
        for _, parameter in block.named_parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    theirs.load_state_dict(pairs)
    x = torch.randn(3, 7, 8, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    torch.testing.assert_close(block(x), theirs(x, src_mask=mask), rtol=1e-12, atol=1e-12)


def sees_ahead(model):
    x = torch.randn(4, 12, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    later = x.clone()
    later[:, 6:] += 1.0
    with torch.no_grad():
        return not torch.equal(model(x)[:, :6], model(later)[:, :6])


@pytest.mark.parametrize("norms", ["none", "pre", "post"])
def test_a_prediction_sees_nothing_after_its_place(norms, monkeypatch):
    assert not sees_ahead(decoder(norms))
    attention = F.scaled_dot_product_attention
    monkeypatch.setattr(
        _decoder.F, "scaled_dot_product_attention", lambda q, k, v, is_causal: attention(q, k, v)
    )
    assert sees_ahead(decoder(norms))


def test_draws_are_repeatable_and_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first, again, other = decoder(seed=3), decoder(seed=3), decoder(seed=4)
    assert torch.equal(before, torch.random.get_rng_state())
    for (name, p), q, r in zip(first.named_parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        assert "norm" in name or not torch.equal(p, r)
    with pytest.raises(InvalidValueError, match="even parts"):
        Decoder(norms="pre", embedding_norm=False, seed=0, **{**SHAPE, "dim": 10})


@pytest.mark.parametrize(
    ("norms", "embedding_norm", "status"),
    [
        ("none", False, Status.UNBOUNDED), ("none", True, Status.BOUNDED), ("pre", False, Status.UNBOUNDED),
        ("pre", True, Status.BOUNDED), ("post", False, Status.BOUNDED),
    ],
)  # fmt: skip
def test_only_a_norm_on_the_stream_bounds_it(norms, embedding_norm, status):
    assert analyze(decoder(norms, embedding_norm), (torch.zeros(2, 5, 1).double(),)).status is status


def test_series_are_straight_lines_within_their_ranges():
    made = series.series(500, 31, seed=1)[..., 0].double()
    assert made.shape == (500, 31)
    steps = made.diff(dim=1)
    assert float(steps.diff(dim=1).abs().max()) < 1e-5
    assert 0.95 < float(made[:, 0].abs().max()) <= 1 and 0.095 < float(steps.abs().max()) <= 0.1 + 1e-5
    assert not torch.equal(made, series.series(500, 31, seed=2)[..., 0].double())


class Adds(nn.Module):
    """Predicts one more than the last value."""

    def forward(self, x):
        return x + 1.0


class Line(nn.Module):
    """The right answer, from the last two values."""

    def forward(self, x):
        before = torch.cat([x[:, :1], x[:, :-1]], 1)
        return 2 * x - before


def test_a_series_is_continued_from_its_own_values():
    truth = series.series(3, 12, seed=0).double()
    right, wrong = series.continued([Line(), Adds()], truth, 4)
    torch.testing.assert_close(right[:, 1:], truth[:, 2:], rtol=0, atol=1e-5)
    torch.testing.assert_close(wrong[:, :4], truth[:, :4] + 1.0)
    steps = torch.arange(1, 8, dtype=torch.float64)[None, :, None]
    torch.testing.assert_close(wrong[:, 4:], truth[:, 4:5] + steps)


@pytest.fixture(scope="module")
def samples():
    fresh = series.series(4, 9, seed=5).double()
    return {
        ln: series._follow(f"pre {ln}", "pre", ln, [decoder("pre", ln)], fresh, 4, (1.0, 1e6), 0.1)
        for ln in (False, True)
    }


def test_the_far_fields_claims_hold_and_can_fail(samples):
    free, normed = samples[False], samples[True]
    for s in (free, normed):
        assert series._far_field(s).holds, series._far_field(s)
        assert not series._far_field(replace(s, moved=1e-3)).holds
        other = normed if s is free else free
        assert not series._far_field(replace(s, reports=other.reports)).holds
    assert not series._far_field(replace(normed, bounds=normed.largest.amax(1) * 0.999)).holds
    assert not series._far_field(replace(free, slope=0 * free.slope)).holds


def test_errors_are_compared_as_they_are(samples):
    free, normed = samples[False], samples[True]
    better = replace(normed, errors=free.errors / 2, own_errors=free.own_errors * 2)
    first, second = series._stabilized([free, better], 4, 8)
    assert first.holds and not second.holds
    assert series._stabilized([free], 4, 8) == []
    assert not series._learned([replace(free, r2=torch.tensor([0.99, 0.94]))]).holds
    assert series._learned([replace(free, r2=torch.tensor([0.99, 0.951]))]).holds
