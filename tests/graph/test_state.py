"""State that a model keeps between calls is named by the capture, and left as it was."""

from __future__ import annotations

import types
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from farfield.audit import audit
from farfield.graph import capture
from farfield.growth import Status


class Keeps(nn.Module):
    """A bounded layer; what a subclass keeps is its own."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)

    def bounded(self, x):
        return torch.tanh(self.line(x))


class RunningMean(Keeps):
    """The first call returns the same for every input, the second grows."""

    mean = None

    def forward(self, x):
        self.mean = x if self.mean is None else 0.9 * self.mean + 0.1 * x
        return self.line(x - self.mean)


class NestedCache(Keeps):
    def __init__(self):
        super().__init__()
        self.cache = {"layer0": {"h": torch.zeros(1, 4)}}

    def forward(self, x):
        kept = self.cache["layer0"]
        kept["h"] = 0.9 * kept["h"] + torch.tanh(x)
        return self.bounded(x) + kept["h"]


class InPlace(Keeps):
    def __init__(self):
        super().__init__()
        self.h = [torch.zeros(1, 4)]

    def forward(self, x):
        self.h[0].mul_(0.9).add_(torch.tanh(x))
        return self.h[0].clone()


class InAnObject(Keeps):
    def __init__(self):
        super().__init__()
        self.memory = types.SimpleNamespace(calls=0, seen=deque(maxlen=3))

    def forward(self, x):
        self.memory.calls += 1
        self.memory.seen.append(x)
        return self.bounded(x)


class OnTheClass(Keeps):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return self.line(x) if self.calls > 100 else self.bounded(x)


class InAnArray(Keeps):
    def __init__(self):
        super().__init__()
        self.count = np.zeros(2)

    def forward(self, x):
        self.count[0] += 1
        return self.bounded(x) * float(self.count[0] > 0)


class InASubmodule(Keeps):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([NestedCache()])

    def forward(self, x):
        return self.parts[0](x)


KEPT = {
    RunningMean: "mean",
    NestedCache: "cache['layer0']['h']",
    InPlace: "h[0]",
    InAnObject: "memory.calls",
    OnTheClass: "OnTheClass.calls",
    InAnArray: "count",
    InASubmodule: "parts.0.cache['layer0']['h']",
}


def everything(value):
    """A model's state as text, however deep; tensors by type and entries."""
    if isinstance(value, nn.Module | types.SimpleNamespace):
        return {k: everything(v) for k, v in vars(value).items() if not k.startswith("_") or k == "_buffers"}
    if isinstance(value, dict):
        return {k: everything(v) for k, v in value.items()}
    if isinstance(value, list | deque):
        return [everything(v) for v in value]
    return f"{type(value).__name__} {value}"


@pytest.mark.parametrize("kind", KEPT)
def test_state_is_named_and_left_as_it_was(kind):
    model = kind().eval()
    before, objects = everything(model), {k: id(v) for k, v in vars(model).items()}
    result = audit(model, torch.ones(1, 4), rays=0)
    assert everything(model) == before and {k: id(v) for k, v in vars(model).items()} == objects
    assert kind is not OnTheClass or OnTheClass.calls == 0
    said = " ".join(a.text for a in result.report.assumptions)
    assert result.verdict is not Status.BOUNDED or ("state" in said and KEPT[kind] in said)
    model(torch.ones(1, 4))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
        nn.utils.spectral_norm(nn.Linear(4, 4)),
        nn.Sequential(nn.Unflatten(1, (1, 4)), nn.LSTM(4, 3, batch_first=True)),
        nn.MultiheadAttention(4, 2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_model_without_state_has_none(model):
    x = torch.ones(1, 4)
    inputs = (x, x, x) if isinstance(model, nn.MultiheadAttention) else x
    assert not any("state" in text for text in capture(model.eval(), inputs).unseen)


def test_a_model_that_cannot_be_traced_is_left_as_it_was():
    """Every method of capture runs the forward, and each begins with the state that was given."""

    class Untraceable(NestedCache):
        def forward(self, x):
            if float(x.sum()) > 1e9:
                return x
            return super().forward(x)

    model = Untraceable().eval()
    program = capture(model, torch.ones(1, 4))
    assert program.capture == "modules" and any("layer0" in text for text in program.unseen)
    assert type(model.cache["layer0"]["h"]) is torch.Tensor and not model.cache["layer0"]["h"].any()
