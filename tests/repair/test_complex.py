"""Models with a complex state inside and real outputs are repaired."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.audit import audit
from farfield.growth import Status


class LinearRecurrence(nn.Module):
    """A linear recurrent unit: h ← λh + Bx with complex λ and B."""

    def __init__(self, bias=False):
        super().__init__()
        self.B, self.C = nn.Parameter(torch.randn(4, 4, 2)), nn.Linear(4, 2)
        self.angle, self.bias = (
            nn.Parameter(torch.randn(4)),
            nn.Parameter(torch.randn(4, 2)) if bias else None,
        )

    def forward(self, x):
        h, weight = 0, torch.view_as_complex(self.B)
        for t in range(x.shape[1]):
            put = x[:, t].to(weight.dtype) @ weight
            if self.bias is not None:
                bias = torch.view_as_complex(self.bias)
                put = nn.functional.linear(x[:, t].to(weight.dtype), weight.mT, bias)
            h = 0.9 * torch.exp(1j * self.angle) * h + put
        return self.C(h.real)


@pytest.mark.parametrize("bias", [False, True])
def test_a_complex_recurrence_is_repaired(bias):
    torch.manual_seed(0)
    model, rows = LinearRecurrence(bias).eval(), torch.randn(200, 5, 4)
    assert audit(model, rows[:1], rays=0).verdict is not Status.BOUNDED
    made = ff.repair(model, rows)
    assert made.after.verdict is Status.BOUNDED
    with torch.no_grad():
        assert torch.equal(made.model(rows), model(rows))
        assert float(made.model(1e9 * rows).abs().max()) < 1e3


class ComplexLayer(nn.Module):
    """A complex layer with a complex bias, of bounded or of growing numbers."""

    def __init__(self, bounded):
        super().__init__()
        self.bounded = bounded
        self.weight = nn.Parameter(torch.randn(3, 4, dtype=torch.complex64))
        self.bias = nn.Parameter(torch.randn(3, dtype=torch.complex64))

    def forward(self, x):
        z = torch.complex(torch.tanh(x), torch.sigmoid(x)) if self.bounded else torch.complex(x, 2 * x)
        y = nn.functional.linear(z, self.weight, self.bias)
        return torch.cat([y.real, y.imag, y.abs()], -1)


@pytest.mark.parametrize("bounded", [True, False])
def test_a_complex_layer_is_bounded_as_its_operands_are(bounded):
    torch.manual_seed(0)
    model = ComplexLayer(bounded).eval()
    assert (audit(model, torch.zeros(2, 4), rays=0).verdict is Status.BOUNDED) is bounded
    if bounded:
        program = ff.certify(model, torch.zeros(1, 4), time_budget=ff.Budget(steps=20))
        with torch.no_grad():
            values = model(1e3 * torch.randn(2000, 4)).double()
        assert bool((values <= program.upper + 1e-4).all() and (values >= program.lower - 1e-4).all())
