"""Complex numbers on the way to real outputs: bounded by intervals, and never taken for their real parts."""

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.certify import CertificateError

WEIGHT = torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))


def pair(x):
    return torch.complex(torch.tanh(x), 5.0 + 2.0 * torch.tanh(x))


CASES = {
    "imaginary": lambda x: pair(x).imag + pair(x).real,
    "layer": lambda x: (pair(x) @ WEIGHT.T).imag,
    "as_real": lambda x: torch.view_as_real(pair(x)).sum(-1),
    "constant": lambda x: (torch.tanh(x) * (1 + 2j)).imag,
    "fourier": lambda x: torch.fft.fft(torch.tanh(x)).imag,
    "cast": lambda x: (torch.tanh(x).to(torch.complex64) * 1j).imag,
    "size": lambda x: pair(x).abs(),
    "product": lambda x: (pair(x) * pair(x + 1.0)).real,
    "pieces": lambda x: sum(part.imag for part in pair(x).chunk(2, -1)),
    "stacked": lambda x: torch.stack([pair(x), pair(-x)]).sum(0).imag,
}


@pytest.mark.parametrize("name", CASES)
def test_no_value_leaves_the_bounds(name):
    class Model(nn.Module):
        def forward(self, x):
            return CASES[name](x)

    model = Model().eval()
    proved = ff.certify(model, torch.zeros(1, 4), time_budget=ff.Budget(steps=20))
    x = 4.0 * torch.randn(3000, 4, generator=torch.Generator().manual_seed(1))
    values = model(x).double()
    assert bool((values <= proved.upper + 1e-4).all() and (values >= proved.lower - 1e-4).all())
    with pytest.raises(CertificateError, match="checker does not support complex numbers"):
        ff.verify_certificate(model, proved)
    assert float((proved.upper - proved.lower).max()) < 500.0
