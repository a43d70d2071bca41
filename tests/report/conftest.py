"""Real audits of small models, made once, and big graphs made by hand."""

import copy

import pytest
import torch
from torch import nn

from farfield.audit import audit


class Residual(nn.Module):
    """Pre-norm blocks; the skips escape unless a final norm closes them."""

    def __init__(self, blocks: int = 2, final: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(blocks))
        self.mixes = nn.ModuleList(nn.Linear(16, 16) for _ in range(blocks))
        self.final = nn.LayerNorm(16) if final else nn.Identity()
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        h = self.embed(x)
        for norm, mix in zip(self.norms, self.mixes, strict=True):
            h = h + torch.relu(mix(norm(h)))
        return self.head(self.final(h))


class Critic(nn.Module):
    """The state is normalized, the action joins after it; the second output is bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU())
        self.value = nn.Sequential(nn.Linear(18, 16), nn.ReLU(), nn.Linear(16, 1))
        self.aux = nn.Sequential(nn.Linear(16, 4), nn.Tanh())

    def forward(self, state, action):
        h = self.encode(state)
        return self.value(torch.cat([h, action], -1)), self.aux(h)


class Ratio(nn.Module):
    """A denominator that can vanish: not to be decided."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, x):
        return self.a(x) / self.b(x)


class Exponential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)

    def forward(self, x):
        return torch.exp(self.a(x)).sum(-1, keepdim=True)


class Encoder(nn.Module):
    """A pre-norm transformer encoder without a final norm: more than sixty operations."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.embed = nn.Linear(6, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)))


def batch_norm():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))


MODELS = {
    "bounded": (lambda: Residual(final=True), ((2, 6),)),
    "unbounded": (Residual, ((2, 6),)),
    "unknown": (Ratio, ((2, 6),)),
    "two inputs": (Critic, ((2, 8), (2, 2))),
    "batch norm": (batch_norm, ((2, 6),)),
    "exponential": (Exponential, ((2, 6),)),
    "transformer": (Encoder, ((2, 3, 6),)),
}
VERDICTS = {
    "bounded": "BOUNDED",
    "unbounded": "UNBOUNDED",
    "unknown": "UNKNOWN",
    "two inputs": "UNBOUNDED",
    "batch norm": "UNBOUNDED",
    "exponential": "UNBOUNDED",
    "transformer": "UNBOUNDED",
}
_MADE = {}


@pytest.fixture
def audited():
    """``audited(name)``: the audit of one of the models as plain data, the caller's to change."""

    def get(name):
        if name not in _MADE:
            torch.manual_seed(0)
            make, shapes = MODELS[name]
            inputs = tuple(torch.randn(*shape) for shape in shapes)
            _MADE[name] = audit(make().eval(), inputs, name=f"the {name} model", rays=2).to_dict()
        return copy.deepcopy(_MADE[name])

    return get


@pytest.fixture(params=list(MODELS))
def named(request, audited):
    """Every audit in turn: (the verdict it must have, data)."""
    return VERDICTS[request.param], audited(request.param)


@pytest.fixture
def huge(audited):
    """An audit whose graph has ``layers`` blocks of five operations, with or without module names."""

    def make(layers, modules=True):
        data = audited("unbounded")
        nodes, edges, path = [_node("x", "input", "", "linear")], [], ["x"]
        for i in range(layers):
            prefix = f"model.layers.{i}" if modules else ""
            steps = [
                ("ln", "layer_norm", "norm"),
                ("up", "linear", "mlp.up"),
                ("act", "gelu", "mlp"),
                ("down", "linear", "mlp.down"),
            ]
            last = path[-1]
            for short, op, sub in steps:
                name = f"{short}_{i}"
                nodes.append(_node(name, op, f"{prefix}.{sub}" if modules else "", "bounded"))
                edges.append([last, name])
                last = name
            nodes.append(_node(f"add_{i}", "add", prefix, "linear"))
            edges += [[path[-1], f"add_{i}"], [last, f"add_{i}"]]
            path.append(f"add_{i}")
        nodes.append(_node("output", "identity", "", "linear", role="output"))
        edges.append([path[-1], "output"])
        path.append("output")
        data["graph"] = {"nodes": nodes, "edges": edges}
        data["subject"]["nodes"] = len(nodes)
        for verdict in data["growth"]["verdicts"]:
            verdict["paths"] = [
                {
                    "nodes": path,
                    "labels": [f"model.layers.{i}.add" for i in range(layers)],
                    "bypassed": [f"model.layers.{i}.norm" for i in range(layers)],
                }
            ]
            verdict["cut"] = {
                "nodes": [f"add_{layers - 1}"],
                "labels": [f"model.layers.{layers - 1}.add"],
                "verified": True,
            }
        return data

    return make


def _node(name, op, path, growth, role=None):
    return {
        "name": name,
        "op": op,
        "role": role or ("input" if op == "input" else "operation"),
        "module_path": path,
        "module_type": {"layer_norm": "LayerNorm", "linear": "Linear"}.get(op, "Block") if path else "",
        "shape": ["s77", "64"],
        "source": "models/net.py:12",
        "growth": growth,
    }
