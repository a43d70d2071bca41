"""Programs are saved for any number of rows, and certified for one."""

import pytest
import torch
from torch import nn

from farfield.errors import InvalidValueError
from farfield.graph import capture, export_for_any_rows, write_program


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(4, 5, batch_first=True), nn.Linear(9, 1)

    def forward(self, x):
        return self.head(torch.cat([self.cell(x)[0][:, -1], x[:, -1]], 1))


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(4, 4, 5, dtype=torch.cfloat))
        self.lift, self.head = nn.Conv1d(1, 4, 1), nn.Conv1d(4, 1, 1)

    def forward(self, x):
        z = self.lift(x)
        f = torch.fft.rfft(z)
        g = torch.zeros_like(f)
        g[..., :5] = torch.einsum("bik,iok->bok", f[..., :5], self.weight)
        return self.head(torch.relu(torch.fft.irfft(g, n=x.shape[-1]) + z))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "spectral"])
def test_a_program_exported_from_one_row_takes_any_number(name):
    torch.manual_seed(0)
    model = Spectral().eval() if name == "spectral" else Recurrent(getattr(nn, name)).eval()
    rows = torch.randn(9, 1, 16) if name == "spectral" else torch.randn(9, 6, 4)
    program = export_for_any_rows(model, (rows[:1],), {}).module()
    with torch.no_grad():
        for count in (1, 2, 3, 9):
            assert torch.equal(program(rows[:count]), model(rows[:count]))


def test_a_model_for_one_number_of_rows_is_saved_for_it():
    class Fixed(nn.Module):
        def forward(self, x):
            return x.reshape(4, 3) * 2.0

    program = export_for_any_rows(Fixed(), (torch.ones(4, 3),), {}).module()
    assert torch.equal(program(torch.ones(4, 3)), torch.full((4, 3), 2.0))


def test_open_axes_are_closed_for_one_row(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    write_program(export_for_any_rows(model, (torch.zeros(1, 3),), {}), tmp_path / "m.pt2")
    assert capture(tmp_path / "m.pt2").inputs[0].shape != (1, 3)
    assert capture(tmp_path / "m.pt2", dynamic_batch=False).inputs[0].shape == (1, 3)
    closed = capture(tmp_path / "m.pt2", torch.zeros(5, 3), dynamic_batch=False)
    assert all(isinstance(size, int) for node in closed.nodes for size in node.shape)
    assert closed.node("output").shape == (5, 4)


def test_an_open_length_needs_an_example(tmp_path):
    class Pooled(nn.Module):
        def forward(self, x):
            return torch.tanh(x).mean(1)

    axes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("time")},)
    program = torch.export.export(Pooled(), (torch.zeros(2, 7, 3),), dynamic_shapes=axes)
    with pytest.raises(InvalidValueError, match=r"--input"):
        capture(program, dynamic_batch=False)
    assert capture(program, torch.zeros(1, 9, 3), dynamic_batch=False).inputs[0].shape == (1, 9, 3)
