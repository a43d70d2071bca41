"""The report in README: a residual network without its final norm.

farfield audit docs/_static/report.py:DragSurrogate --input 1x8 --html report.html
chromium --headless --hide-scrollbars --window-size=1200,1512 --screenshot=docs/_static/report.png report.html
"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Norm, two linear maps, and a skip connection around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The input, plus a correction."""
        return x + self.down(torch.relu(self.up(self.norm(x))))


class DragSurrogate(nn.Module):
    """Drag of a body from eight numbers that describe its shape."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(8, 64)
        self.blocks = nn.Sequential(Block(64), Block(64))
        self.head = nn.Linear(64, 1)

    def forward(self, shape: Tensor) -> Tensor:
        """Every path to the head goes around the norms."""
        return self.head(self.blocks(self.embed(shape)))
