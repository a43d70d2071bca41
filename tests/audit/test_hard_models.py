"""Models that are hard to read: each is decided, or the reason is said; none is called bounded and grows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from farfield.audit import audit
from farfield.growth import Status


class StraightThrough(nn.Module):
    """Vector quantization with the gradient passed around it: z + (q − z), which is q."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.codes, self.decoder = nn.Linear(3, 4), nn.Embedding(8, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.encoder(x)
        nearest = (z.unsqueeze(1) - self.codes.weight).pow(2).sum(-1).argmin(-1)
        return self.decoder(z + (self.codes(nearest) - z).detach())


class SmallSlopes(nn.Module):
    """Nine layers with weights of size 0.02: a slope of about 10⁻¹⁵."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


class ForceField(nn.Module):
    """A gradient taken inside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            return -torch.autograd.grad(self.energy(x).sum(), x)[0]


def test_straight_through_quantization_is_bounded():
    torch.manual_seed(0)
    assert audit(StraightThrough(), torch.randn(2, 3), rays=0).verdict is Status.BOUNDED


def test_small_slopes_are_found():
    torch.manual_seed(0)
    found = audit(SmallSlopes(), torch.randn(2, 4), rays=0)
    assert found.verdict is Status.UNBOUNDED
    assert found.witness is not None


def test_a_gradient_inside_is_not_captured_and_says_so():
    torch.manual_seed(0)
    found = audit(ForceField(), torch.randn(2, 3), rays=0)
    assert found.verdict is Status.UNKNOWN
    assert "could not be captured" in found.report.verdicts[0].reason.text


@pytest.mark.filterwarnings("ignore")
def test_quantized_layers_are_not_captured_and_say_so():
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    model = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)
    found = audit(model, torch.randn(2, 4), rays=0)
    assert found.verdict is Status.UNKNOWN
    assert "could not be captured" in found.report.verdicts[0].reason.text
