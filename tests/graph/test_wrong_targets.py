"""What is no model is told what it is, and the line that works."""

import types

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.errors import FarfieldError


class Pipeline:
    def predict(self, x):
        return x

    def get_params(self):
        return {}


def agent():
    policy = nn.Module()
    policy.actor, policy.critic = nn.Linear(3, 1), nn.Linear(4, 1)
    return types.SimpleNamespace(policy=policy)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("missing.pt2", r"no file 'missing.pt2'"),
        ("missing.onnx", r"no file 'missing.onnx'"),
        ("weights.safetensors", "load_state_dict"),
        ("package.module:Net", "in Python import it"),
        (nn.Linear, "pass an instance"),
        (nn.Linear(3, 1).state_dict(), "load_state_dict"),
        (Pipeline(), "skl2onnx"),
        (types.SimpleNamespace(module_=nn.Linear(3, 1)), r"\.module_ \(Linear\)"),
        (agent(), r"\.policy\.actor \(Linear\), \.policy\.critic"),
        (torch.tanh, "Wrap a function"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_every_verb_says_what_it_is(target, said):
    rows = torch.zeros(20, 3)
    for verb in (ff.audit, ff.repair, ff.guard, ff.certify):
        with pytest.raises(FarfieldError, match=said) as error:
            verb(target, rows)
        assert "--trust" not in str(error.value)
