"""A small decoder over sequences of numbers, with norms where one asks for them."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from farfield.errors import InvalidValueError

__all__ = ["Decoder", "DecoderBlock", "Norms"]

Norms: TypeAlias = Literal["none", "pre", "post"]


class DecoderBlock(nn.Module):
    """Causal attention of several heads and a feed-forward layer, each beside a skip.

    Parameters
    ----------
    dim, heads, hidden
        Of the stream, number of heads, width of the feed-forward layer.
    norms
        ``"pre"``: x + g(LN x). ``"post"``: LN(x + g(x)). ``"none"``: x + g(x).
    """

    def __init__(self, dim: int, heads: int, hidden: int, norms: Norms) -> None:
        super().__init__()
        self.heads, self.norms = heads, norms
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.feed = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.norm1, self.norm2 = ((nn.Identity() if norms == "none" else nn.LayerNorm(dim)) for _ in range(2))

    def attend(self, x: Tensor) -> Tensor:
        """Shape (rows, tokens, dim) → the same; a token sees itself and those before it."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return y

    def forward(self, x: Tensor) -> Tensor:
        """Shape (rows, tokens, dim) → the same."""
        if self.norms == "post":
            x = self.norm1(x + self.attend(x))
            y: Tensor = self.norm2(x + self.feed(x))
            return y
        x = x + self.attend(self.norm1(x))
        branch: Tensor = self.feed(self.norm2(x))
        return x + branch

    def extra_repr(self) -> str:
        """What print shows."""
        return f"heads={self.heads}, norms={self.norms!r}"


class Decoder(nn.Module):
    """Numbers s₀, s₁, … to a prediction of the next at every place, from those up to it.

    A number is embedded by a linear layer, fixed sines and cosines of its place are added, blocks follow, and a
    linear layer reads the prediction. Where the paper speaks of an LN after the embedding, it stands here between the
    linear layer and the places, so that a huge number does not drown its place.

    Parameters
    ----------
    dim, heads, depth, hidden
        Sizes of the blocks and their number.
    norms
        Inside the blocks, see :class:`DecoderBlock`. There is no norm behind the last block.
    embedding_norm
        Whether an LN follows the embedding.
    places
        The longest sequence.
    seed
        Of the draws: torch's own initialization, from a generator of its own.

    Examples
    --------
    >>> net = Decoder(dim=8, heads=2, depth=1, hidden=16, norms="pre", embedding_norm=True, places=20, seed=0)
    >>> net(torch.zeros(3, 5, 1)).shape
    torch.Size([3, 5, 1])
    """

    places: Tensor

    def __init__(
        self,
        *,
        dim: int,
        heads: int,
        depth: int,
        hidden: int,
        norms: Norms,
        embedding_norm: bool,
        places: int,
        seed: int,
    ) -> None:
        super().__init__()
        if dim % (2 * heads):
            raise InvalidValueError(
                f"Heads share the stream's dimension in even parts; got {dim} for {heads} heads."
            )
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.embedding = nn.Linear(1, dim)
            self.embedding_norm = nn.LayerNorm(dim) if embedding_norm else nn.Identity()
            self.blocks = nn.Sequential(*(DecoderBlock(dim, heads, hidden, norms) for _ in range(depth)))
            self.readout = nn.Linear(dim, 1)
        place = torch.arange(places)[:, None] * torch.exp(torch.arange(0, dim, 2) * (-math.log(1e4) / dim))
        self.register_buffer("places", torch.stack([place.sin(), place.cos()], 2).flatten(1))

    def forward(self, series: Tensor) -> Tensor:
        """Shape (rows, tokens, 1) → the same."""
        x = self.embedding_norm(self.embedding(series)) + self.places[: series.shape[1]]
        y: Tensor = self.readout(self.blocks(x))
        return y
