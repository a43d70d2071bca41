"""Models as people write them that a capture, a search for growth or a plot once fell over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal
from torch.nn import Linear, functional

NODES, EDGES, FEATURES = 5, 12, 6
B, U, K = "BOUNDED", "UNBOUNDED", "UNKNOWN"


class GCN(nn.Module):
    """Symmetrically normalized neighbourhoods, index_add."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.a, self.b = Linear(FEATURES, 16), Linear(16, 3)
        self.norm = nn.LayerNorm(16) if norm else nn.Identity()

    def spread(self, h: Tensor, edges: Tensor) -> Tensor:
        src, dst = edges
        degree = torch.zeros(h.shape[0]).scatter_add(0, dst, torch.ones(dst.shape[0])).clamp(min=1)
        weight = (degree[src] * degree[dst]).rsqrt()
        return torch.zeros_like(h).index_add(0, dst, h[src] * weight[:, None])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.spread(self.b(torch.relu(self.norm(self.spread(self.a(x), edges)))), edges)


class GAT(nn.Module):
    """A softmax over each node's edges, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.score, self.out = Linear(FEATURES, 16), Linear(32, 1), Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        src, dst = edges
        h = self.a(x)
        ends = torch.cat([h.index_select(0, src), h.index_select(0, dst)], -1)
        e = functional.leaky_relu(self.score(ends), 0.2).squeeze(-1)
        w = torch.exp(e - e.max())
        total = torch.zeros(h.shape[0]).scatter_add(0, dst, w)
        mean = torch.zeros_like(h).index_add(0, dst, (w / (total[dst] + 1e-9))[:, None] * h[src])
        return self.out(functional.elu(mean))


class GraphSAGE(nn.Module):
    """Mean of the neighbors beside the node itself."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.own, self.out = Linear(FEATURES, 16), Linear(FEATURES, 16), Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        src, dst = edges
        total = torch.zeros(x.size(0), x.size(1)).index_add_(0, dst, x[src])
        count = torch.zeros(x.size(0), 1).index_add_(0, dst, torch.ones(src.numel(), 1)).clamp_(min=1)
        return self.out(torch.relu(self.near(total / count) + self.own(x)))


class EdgeConv(nn.Module):
    """Maximum over messages of differences."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Sequential(Linear(2 * FEATURES, 16), nn.ReLU(), Linear(16, 16))
        self.out = Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        src, dst = edges
        m = self.message(torch.cat([x[dst], x[src] - x[dst]], -1))
        most = torch.full((x.shape[0], 16), -1e9).scatter_reduce(0, dst[:, None].expand(-1, 16), m, "amax")
        return self.out(most)


class GIN(nn.Module):
    """Sums of neighbors, then of the nodes of each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(Linear(FEATURES, 16), nn.ReLU(), Linear(16, 16))
        self.own, self.out = nn.Parameter(torch.zeros(1)), Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        src, dst = edges
        h = self.mix((1 + self.own) * x + torch.zeros_like(x).index_add(0, dst, x[src]))
        return self.out(torch.zeros(2, 16).index_add(0, graph, h))


class SetTransformer(nn.Module):
    """Induced points, then pooling by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = Linear(FEATURES, 16), Linear(16, 1)
        self.points, self.seed = nn.Parameter(torch.randn(1, 4, 16)), nn.Parameter(torch.randn(1, 1, 16))
        self.attend = nn.ModuleList(nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h, n = self.embed(x), x.shape[0]
        points = self.points.expand(n, -1, -1)
        points = points + self.attend[0](points, h, h, need_weights=False)[0]
        h = h + self.attend[1](h, points, points, need_weights=False)[0]
        return self.out(self.attend[2](self.seed.expand(n, -1, -1), h, h, need_weights=False)[0]).squeeze(-1)


class ForceField(nn.Module):
    """Pairwise forces over a neighbor list, cut off smoothly at distance 5."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Embedding(4, 8)
        self.pair = nn.Sequential(Linear(26, 16), nn.SiLU(), Linear(16, 1))
        self.register_buffer("centers", torch.linspace(0, 5, 10))

    def forward(self, position: Tensor, species: Tensor, neighbors: Tensor) -> Tensor:
        i, j = neighbors
        r = position[j] - position[i]
        d = r.norm(dim=-1)
        shells = torch.exp(-((d[:, None] - self.centers) ** 2))
        cut = torch.where(d < 5, 0.5 * (torch.cos(d * 3.14159 / 5) + 1), torch.zeros_like(d))
        kinds = self.kind(species)
        weight = self.pair(torch.cat([kinds[i], kinds[j], shells], -1)).squeeze(-1) * cut
        return torch.zeros_like(position).index_add(0, i, weight[:, None] * r / (d[:, None] + 1e-6))


class Experts(nn.Module):
    """Top-2 routing as Mixtral does it: each expert sees the rows that chose it."""

    def __init__(self) -> None:
        super().__init__()
        self.route, self.out = Linear(6, 4), Linear(6, 2)
        self.experts = nn.ModuleList(nn.Sequential(Linear(6, 12), nn.SiLU(), Linear(12, 6)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        h = x.reshape(-1, d)
        weight, chosen = torch.topk(functional.softmax(self.route(h), -1), 2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        result = torch.zeros_like(h)
        mask = functional.one_hot(chosen, 4).permute(2, 1, 0)
        for k, expert in enumerate(self.experts):
            which, rows = torch.where(mask[k])
            result.index_add_(0, rows, expert(h[None, rows].reshape(-1, d)) * weight[rows, which, None])
        return self.out(result.reshape(n, t, d))


@dataclasses.dataclass
class Record:
    """What some models return."""

    mean: Tensor
    spread: Tensor


class Pair(NamedTuple):
    """What others return."""

    mean: Tensor
    spread: Tensor


class Odd(nn.Module):
    """Two linear layers and a body given as a function."""

    def __init__(self, body: Callable[..., Any], wide: int = 4) -> None:
        super().__init__()
        self.a, self.b, self.body = Linear(wide, 8), Linear(8, 3), body

    def forward(self, *args: Any) -> Any:
        return self.body(self, *args)


def chosen_rows(m: Odd, x: Tensor) -> Tensor:
    h = torch.relu(m.a(x))
    return m.b(h[torch.nonzero(h[:, 0] > 0).squeeze(-1)])


def positive_entries(m: Odd, x: Tensor) -> Tensor:
    h = m.a(x)
    return torch.masked_select(h, h > 0).sum()


def bounded_rows(m: Odd, x: Tensor) -> Tensor:
    h = torch.tanh(m.a(x))
    return h[h.sum(-1) > 0]


def distinct(m: Odd, x: Tensor, ids: Tensor) -> Tensor:
    values, place = torch.unique(ids, return_inverse=True)
    return values.float()[place][:, None] * m.a(x)


def sampled(m: Odd, x: Tensor) -> tuple[Tensor, Tensor]:
    policy = Normal(m.b(torch.tanh(m.a(x))), torch.ones(3))
    action = torch.tanh(policy.rsample())
    return action, policy.log_prob(action).sum(-1)


def scored(m: Odd, x: Tensor) -> Tensor:
    return Independent(Normal(torch.tanh(m.b(m.a(x))), 1.0), 1).log_prob(x[:, :3])


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
Z = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.complex64)
EDGE_INDEX = torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(2))
NODE = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(3))


def plain(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(Linear(4, 8), *middle, nn.ReLU(), Linear(8, 2))


CASES: dict[str, tuple[Callable[[], nn.Module], Any, tuple[str, ...]]] = {
    "GCN": (GCN, (NODE, EDGE_INDEX), (U, K)),
    "GCN with a norm": (lambda: GCN(norm=True), (NODE, EDGE_INDEX), (B,)),
    "GAT": (GAT, (NODE, EDGE_INDEX), (U, K)),
    "GraphSAGE": (GraphSAGE, (NODE, EDGE_INDEX), (U, K)),
    "EdgeConv": (EdgeConv, (NODE, EDGE_INDEX), (U, K)),
    "GIN": (GIN, (NODE, EDGE_INDEX, torch.tensor([0, 0, 0, 1, 1])), (U, K)),
    "set transformer": (SetTransformer, (torch.randn(2, 7, FEATURES),), (U,)),
    "force field": (ForceField, (NODE[:, :3], torch.tensor([0, 1, 2, 3, 0]), EDGE_INDEX), (B, K)),
    "top-2 experts": (Experts, (torch.randn(2, 3, 6),), (U, K)),
    "scalar output": (lambda: Odd(lambda m, x: m.b(torch.relu(m.a(x))).sum()), (X,), (U,)),
    "scalar bounded output": (lambda: Odd(lambda m, x: torch.tanh(m.a(x)).mean()), (X,), (B,)),
    "a loss": (
        lambda: Odd(lambda m, x, y: functional.cross_entropy(m.b(m.a(x)), y)),
        (X, torch.tensor([0, 1, 2])),
        (U,),
    ),
    "no batch axis": (lambda: Odd(lambda m, x: m.a.weight[0] @ x), (X[0],), (U,)),
    "one number in": (lambda: Odd(lambda m, x: 2 * x), (torch.tensor(0.3),), (U,)),
    "one number in, bounded": (lambda: Odd(lambda m, x: torch.tanh(x)), (torch.tensor(0.3),), (B,)),
    "nonzero": (lambda: Odd(chosen_rows), (X,), (U,)),
    "masked_select": (lambda: Odd(positive_entries), (X,), (U, K)),
    "boolean indexing by an input": (
        lambda: Odd(lambda m, x, mask: m.a(x)[mask]),
        (X, torch.tensor([True, False, True])),
        (U,),
    ),
    "boolean indexing of bounded rows": (lambda: Odd(bounded_rows), (X,), (B,)),
    "unique": (lambda: Odd(distinct), (X, torch.tensor([1, 1, 2])), (U,)),
    "an actor's sample": (lambda: Odd(sampled), (X,), (B,)),
    "an actor's mean": (lambda: Odd(lambda m, x: Normal(m.b(torch.tanh(m.a(x))), 1.0).mean), (X,), (B,)),
    "a categorical actor": (lambda: Odd(lambda m, x: Categorical(logits=m.b(m.a(x))).probs), (X,), (B,)),
    "a log density": (lambda: Odd(scored), (X,), (U,)),
    "traced": (lambda: torch.jit.trace(plain().eval(), X), (X,), (K,)),
    "scripted": (lambda: torch.jit.script(plain(nn.LayerNorm(8)).eval()), (X,), (K,)),
    "a record out": (lambda: Odd(lambda m, x: Record(torch.tanh(m.a(x)), m.a(x))), (X,), (U,)),
    "a bounded record out": (
        lambda: Odd(lambda m, x: [Record(torch.tanh(m.a(x)), m.a(x).cos())]),
        (X,),
        (B,),
    ),
    "a named tuple out": (lambda: Odd(lambda m, x: Pair(torch.tanh(m.a(x)), m.a(x))), (X,), (U,)),
    "two in, a dictionary out": (
        lambda: Odd(lambda m, x, y: {"u": torch.tanh(m.a(x)), "v": [m.b(y), None, 3]}),
        (X, torch.randn(5, 8)),
        (U,),
    ),
    "complex": (lambda: Odd(lambda m, z: z @ m.a.weight.T.to(z.dtype)), (Z,), (U, K)),
    "modulus": (lambda: Odd(lambda m, z: torch.tanh(z.abs())), (Z,), (B, K)),
    "half, bounded": (lambda: plain(nn.LayerNorm(8)).half(), (X.half(),), (B,)),
    "half": (lambda: plain().half(), (X.half(),), (U,)),
    "bfloat16, bounded": (lambda: plain(nn.LayerNorm(8)).bfloat16(), (X.bfloat16(),), (B,)),
    "bfloat16": (lambda: plain().bfloat16(), (X.bfloat16(),), (U,)),
    "integers in": (
        lambda: nn.Sequential(nn.Embedding(10, 4), Linear(4, 2)),
        (torch.tensor([[1, 2]]),),
        (B,),
    ),
    "empty batch, bounded": (lambda: plain(nn.LayerNorm(8)), (X[:0],), (B,)),
    "empty batch": (plain, (X[:0],), (U,)),
    "nothing in": (lambda: Odd(lambda m: torch.ones(2)), (), (B,)),
    "a count out": (lambda: Odd(lambda m, x: (x > 0).sum(-1)), (X,), (B,)),
}
"""Name → model, inputs, and the verdicts that are right (UNKNOWN where more is not asked for)."""
