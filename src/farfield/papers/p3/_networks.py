"""A small convolutional network and a small transformer whose norms are LayerNorm in groups of a given size."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from farfield.errors import InvalidValueError
from farfield.nn import GroupedChannelNorm, GroupedLayerNorm

__all__ = ["Convolutions", "Encoder"]


def _norm(features: int, size: int, kind: type[GroupedLayerNorm] = GroupedLayerNorm) -> GroupedLayerNorm:
    """LN-G with groups of ``size`` features; 0 for one group of all, LayerNorm."""
    if size and features % size:
        raise InvalidValueError(f"Groups of {size} features do not divide {features}.")
    return kind(features, features // size if size else 1)


class Convolutions(nn.Module):
    """Three 3×3 convolutions, each with a norm and perhaps ReLU behind it, a mean over places, and a linear readout.

    Parameters
    ----------
    channels
        Of the three; the first two halve the places along both axes.
    size
        Features in a group of the norms; 0 for LayerNorm.
    activation
        Whether ReLU follows the norms. Without it nothing but the norms bends.
    seed
        Of the initialization, torch's own: the same for every size of groups.

    Examples
    --------
    >>> Convolutions((8, 8, 16), size=4, activation=False, seed=0)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, channels: tuple[int, int, int], *, size: int, activation: bool, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            layers: list[nn.Module] = []
            before = 3
            for k, count in enumerate(channels):
                layers += [
                    nn.Conv2d(before, count, 3, stride=2 if k < 2 else 1, padding=1),
                    _norm(count, size, GroupedChannelNorm),
                ]
                if activation:
                    layers.append(nn.ReLU())
                before = count
            self.body = nn.Sequential(*layers)
            self.readout = nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, 3, h, w) → (n, 10)."""
        y: Tensor = self.readout(self.body(x).mean((2, 3)))
        return y


class EncoderBlock(nn.Module):
    """x + attention(norm x), then x + feed(norm x)."""

    def __init__(self, dim: int, heads: int, hidden: int, size: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = _norm(dim, size), _norm(dim, size)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, tokens, dim) → the same."""
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        branch: Tensor = self.feed(self.norm2(x))
        return x + branch

    def extra_repr(self) -> str:
        """What print shows."""
        return f"heads={self.heads}"


class Encoder(nn.Module):
    """Rows of an image as tokens through pre-norm blocks, a last norm, a mean over tokens, and a linear readout.

    Parameters
    ----------
    tokens, features
        Rows of an image, and numbers in each.
    dim, heads, hidden, depth
        Of the blocks and their number.
    size
        Features in a group of the norms; 0 for LayerNorm.
    seed
        Of the initialization, torch's own: the same for every size of groups.

    Examples
    --------
    >>> Encoder(7, 5, dim=8, heads=2, hidden=16, depth=1, size=4, seed=0)(torch.zeros(3, 7, 5)).shape
    torch.Size([3, 10])
    """

    def __init__(
        self, tokens: int, features: int, *, dim: int, heads: int, hidden: int, depth: int, size: int, seed: int
    ) -> None:  # fmt: skip
        super().__init__()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.embedding = nn.Linear(features, dim)
            self.places = nn.Parameter(0.1 * torch.randn(tokens, dim))
            self.blocks = nn.Sequential(*(EncoderBlock(dim, heads, hidden, size) for _ in range(depth)))
            self.norm = _norm(dim, size)
            self.readout = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, tokens, features) → (n, 10)."""
        y: Tensor = self.readout(self.norm(self.blocks(self.embedding(x) + self.places)).mean(1))
        return y
