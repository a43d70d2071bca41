"""Behind which operation the cap stands."""

import pytest
import torch
from torch import nn

from farfield.repair import repair

SCALE, SHIFT = torch.tensor([1.0, 500.0, 0.1, 1.0]), torch.tensor([0.0, 1000.0, 3.0, 0.0])
ROWS = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)) * SCALE + SHIFT


class Scaler(nn.Module):
    def forward(self, x):
        return (x - SHIFT) / SCALE


class Scaled(nn.Module):
    """As people write it into the forward, with the input's own column put beside it."""

    def __init__(self, beside):
        super().__init__()
        self.beside = beside
        self.first, self.second = nn.Linear(8 if beside else 4, 16), nn.Linear(16, 1)

    def forward(self, x):
        scaled = (x - SHIFT) / SCALE
        if self.beside:
            scaled = torch.cat([scaled, scaled.square()], -1)
        return self.second(torch.relu(self.first(scaled)))


def in_one():
    torch.manual_seed(0)
    return nn.Sequential(Scaler(), nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).eval()


def program(model):
    return torch.export.export(model, (ROWS[:4],), dynamic_shapes=({0: torch.export.Dim("batch")},))


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (in_one, "2"),
        (lambda: program(in_one()), "relu"),
        (lambda: program(Scaled(False).eval()), "relu"),
        (lambda: program(Scaled(True).eval()), "relu"),
    ],
    ids=["module", "program of a module", "in the forward", "with squares beside"],
)
def test_no_cap_stands_in_units_of_the_inputs(make, place):
    """The size of rows whose features have other units is that of the feature with the largest."""
    (cap,) = [
        i
        for i in repair(make(), ROWS, method="cap" if place == "2" else "auto").inserted
        if i.place == "hidden"
    ]
    assert cap.at.removeprefix("node_") == place
