"""``certify`` as its users call it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.certify import Certificate, UnboundedError
from farfield.errors import InvalidValueError, UnknownNameError


def model(dim=2, outputs=1, head=None, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    layers = [
        nn.Linear(dim, 16),
        nn.LayerNorm(16),
        nn.ReLU(),
        nn.Linear(16, outputs),
        *([] if head is None else [head]),
    ]
    return nn.Sequential(*layers).to(dtype).eval()


def zeros(dim=2, rows=1, dtype=torch.float64):
    return torch.zeros(rows, dim, dtype=dtype)


def test_low_dimension_is_tight():
    certificate = ff.certify(model(1), zeros(1), time_budget=ff.Budget(steps=600))
    assert float(certificate.tightness) < 1.01
    assert certificate.method == "cells"


def test_several_outputs_and_rows():
    certificate = ff.certify(model(outputs=3), zeros(rows=7), time_budget=ff.Budget(steps=600))
    assert certificate.upper.shape == (1, 3)
    assert bool((certificate.tightness < 1.05).all())


def test_float32_models_are_certified_in_real_arithmetic():
    net = model(6, dtype=torch.float32)
    certificate = ff.certify(net, zeros(6, dtype=torch.float32), time_budget=ff.Budget(steps=150))
    assert certificate.float_limit is not None
    assert certificate.float_limit < 1e22
    assert any("Real arithmetic" in a for a in certificate.assumptions)


def test_a_box_is_a_smaller_domain():
    net = model(2)
    everywhere = ff.certify(net, zeros(), time_budget=ff.Budget(steps=400))
    box = ff.certify(net, zeros(), time_budget=ff.Budget(steps=400), domain=(-0.1, 0.1))
    assert box.domain["kind"] == "box"
    assert float(box.upper - box.lower) < float(everywhere.upper - everywhere.lower)
    with torch.no_grad():
        values = net(0.2 * torch.rand(5000, 2, dtype=torch.float64) - 0.1)
    assert float(box.lower) <= float(values.min())
    assert float(values.max()) <= float(box.upper)
    assert float(box.tightness) < 1.02


def test_confidence_behind_a_sigmoid_is_bounded():
    net = model(2, head=nn.Sigmoid())
    certificate = ff.certify(net, zeros(), time_budget=ff.Budget(steps=400))
    assert 0.0 < float(certificate.lower) <= float(certificate.upper) < 1.0
    assert float(certificate.tightness) < 1.05


@pytest.mark.parametrize("classes", [2, 3])
def test_confidence_behind_a_softmax_is_bounded_and_checked(classes):
    net = model(2, outputs=classes, head=nn.Softmax(-1))
    certificate = ff.certify(net, zeros(), time_budget=ff.Budget(steps=600))
    assert bool((certificate.lower > 0.0).all() & (certificate.upper < 1.0).all())
    generator = torch.Generator().manual_seed(0)
    far = torch.randn(20_000, 2, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        values = net(far * 10 ** torch.linspace(-3, 8, 20_000, dtype=torch.float64)[:, None])
    assert bool((certificate.lower <= values.amin(0)).all() & (values.amax(0) <= certificate.upper).all())
    assert float(certificate.tightness.max()) < (1.02 if classes == 2 else 2.5)
    assert ff.verify_certificate(net, certificate)
    forged = certificate.to_dict()
    forged["upper"] = [0.99 * float(v) for v in certificate.attained_upper.reshape(-1)]
    with pytest.raises(ff.certify.CertificateError):
        ff.verify_certificate(net, forged)


def test_resuming_never_loosens():
    net = model(7)
    first = ff.certify(net, zeros(7), time_budget=ff.Budget(steps=200))
    second = ff.certify(net, zeros(7), time_budget=ff.Budget(steps=400), resume=first)
    assert float(second.upper) <= float(first.upper)
    assert float(second.lower) >= float(first.lower)
    with pytest.raises(InvalidValueError, match="same model"):
        ff.certify(model(7, seed=1), zeros(7), resume=first)


def test_json_round_trip(tmp_path):
    certificate = ff.certify(model(), zeros(), time_budget=ff.Budget(steps=150))
    certificate.save(tmp_path / "cert.json")
    again = Certificate.load(tmp_path / "cert.json")
    assert torch.equal(again.upper, certificate.upper)
    assert len(again.proofs) == len(certificate.proofs) == 2


def test_progress_is_reported():
    said = []
    ff.certify(
        model(),
        zeros(),
        time_budget=ff.Budget(steps=150),
        progress=lambda share, words: said.append((share, words)),
    )
    assert said[0][1] == "intervals"
    assert all(0.0 <= share <= 1.0 for share, _ in said)


def test_the_unbounded_is_refused_with_the_direction():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    with pytest.raises(UnboundedError, match=r"is unbounded\..*λ along"):
        ff.certify(net, torch.zeros(1, 3), time_budget=ff.Budget(steps=150))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = model(2, outputs=2)

    def forward(self, x):
        y = self.body(x)
        return {"value": y[:, :1], "other": y[:, 1:]}


def test_one_of_several_outputs():
    with pytest.raises(InvalidValueError, match="say which one"):
        ff.certify(Two().eval(), zeros())
    with pytest.raises(UnknownNameError, match="output_value"):
        ff.certify(Two().eval(), zeros(), output="value")
    assert (
        ff.certify(Two().eval(), zeros(), output="output_value", time_budget=ff.Budget(steps=150)).output
        == "output_value"
    )


def test_a_transformer_encoder_with_a_final_norm():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    net = nn.Sequential(nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(64, 1)).double().eval()
    certificate = ff.certify(
        net, torch.zeros(1, 4, 16, dtype=torch.float64), time_budget=ff.Budget(steps=300)
    )
    with torch.no_grad():
        values = net(
            torch.randn(300, 4, 16, dtype=torch.float64)
            * 10 ** torch.linspace(-3, 6, 300).double()[:, None, None]
        )
    assert float(certificate.lower) <= float(values.min())
    assert float(values.max()) <= float(certificate.upper)
    assert certificate.method == "dual"


def test_gradients_that_the_caller_switched_off_are_switched_on():
    """As inside a serving loop: the search climbs all the same, and finds the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1)).eval()
    x = torch.zeros(1, 3)
    plain = ff.certify(model, x, time_budget=ff.Budget(steps=50))
    with torch.no_grad():
        found = ff.certify(model, x, time_budget=ff.Budget(steps=50))
        assert not torch.is_grad_enabled()
    assert torch.equal(found.lower, plain.lower) and torch.equal(found.upper, plain.upper)


def test_loose_bounds_say_what_would_make_them_tighter():
    """The rule is measured: a norm at the last hidden layer is bounded much more tightly than one at the first."""

    def deep(place):
        torch.manual_seed(0)
        layers, width = [], 6
        for i in range(3):
            layers += [nn.Linear(width, 24), *([nn.LayerNorm(24)] if i == place else []), nn.ReLU()]
            width = 24
        return nn.Sequential(*layers, nn.Linear(24, 1)).double().eval()

    first, last = (ff.certify(deep(k), zeros(6), time_budget=ff.Budget(steps=40)) for k in (0, 2))
    assert float(last.tightness) < float(first.tightness)
    assert "3 layers of activations lie behind the last norm" in first.advice[0]
    assert f"Tighter: {first.advice[0]}" in str(first)
    assert all("behind the last norm" not in text for text in last.advice)
    assert Certificate.from_dict(first.to_dict()).advice == first.advice
    assert ff.certify(model(1), zeros(1), time_budget=ff.Budget(steps=600)).advice == ()


class Scaled(nn.Module):
    """A block behind a factor that begins at exactly 0."""

    def __init__(self, part, scale=0.0):
        super().__init__()
        self.norm, self.part, self.scale = nn.LayerNorm(4), part, nn.Parameter(torch.tensor([scale]))

    def forward(self, x):
        h = self.norm(x)
        return h + self.scale * torch.relu(self.part(h))


class ZeroGate(nn.Module):
    """A gate whose layer is 0 (adaLN-zero), and a state that begins at 0."""

    def __init__(self):
        super().__init__()
        self.norm, self.gate, self.part = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, x):
        h, state = self.norm(x), torch.zeros(1, 4)
        state = torch.sigmoid(self.part(h)) * state + torch.tanh(self.part(h))
        return h + self.gate(torch.tanh(h)) * torch.relu(self.part(h)) + state


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 5)

    def forward(self, x):
        return self.cell(x)[0]


@pytest.mark.parametrize(
    "kind", [Cell, ZeroGate, lambda: Scaled(nn.Linear(4, 4))], ids=["lstm", "gate", "rezero"]
)
def test_a_factor_of_exactly_zero(kind):
    torch.manual_seed(0)
    net = kind().eval()
    certificate = ff.certify(net, torch.zeros(1, 4), time_budget=ff.Budget(steps=50))
    assert certificate.bounded and ff.verify_certificate(net, certificate)
    with torch.no_grad():
        values = net(1e3 * torch.randn(1000, 4)).double()
    assert bool((values <= certificate.upper + 1e-5).all() and (values >= certificate.lower - 1e-5).all())
