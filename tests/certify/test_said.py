"""What a certificate says beside its bounds is checked, or named as unchecked."""

from __future__ import annotations

import copy
import json
from functools import cache

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.certify import CertificateError, Verification, verify_certificate
from farfield.certify.checker import verify_certificate as checker_alone

STEPS = ff.Budget(steps=50)


@cache
def made(arithmetic="real"):
    """A model, and its certificate as plain data."""
    torch.manual_seed(0)
    dtype = torch.float64 if arithmetic == "real" else torch.float32
    layers = nn.Linear(2, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2)
    model = nn.Sequential(*layers).to(dtype).eval()
    found = ff.certify(model, torch.zeros(1, 2, dtype=dtype), time_budget=STEPS, arithmetic=arithmetic)
    return model, json.loads(json.dumps(found.to_dict()))


def test_what_was_not_checked_is_named():
    model, data = made()
    found = verify_certificate(model, data)
    assert isinstance(found, Verification) and found
    said = " ".join(found.unchecked)
    assert all(field in said for field in ("float_limit", "advice", "seconds", "provenance"))
    assert "arithmetic" not in said and "float_limit" in str(found)
    assert found.assumptions == tuple(data["assumptions"])


def test_attained_values_without_a_point_are_named():
    model, data = made()
    bare = copy.deepcopy(data)
    bare["witnesses"]["upper"][0]["point"] = None
    assert not any("attained" in text for text in verify_certificate(model, data).unchecked)
    assert any("attained values of 1 side" in text for text in verify_certificate(model, bare).unchecked)


def edits(data):
    """Fields that a reader believes, changed."""
    half = [value / 2 for value in data["tightness"]]
    yield from ({"assumptions": data["assumptions"][:i] + data["assumptions"][i + 1 :]} for i in range(3))
    yield {"assumptions": []}
    yield {"assumptions": ["Nothing.", *data["assumptions"][1:]]}
    yield {"method": "dual" if data["method"] != "dual" else "cells"}
    yield {"tightness": half}
    yield {"bounded": False}
    yield {"shape": [2, 1]}
    yield {"input_shape": [[1, 1, 2]]}
    yield {"input_dtype": ["float16"]}
    yield {"attained_upper": [value + 1 for value in data["attained_upper"]]}
    for name in ("float64", "bfloat16", "float32", "float8", None):
        yield {"arithmetic": {"format": name, "magnitude": 1e30, "error": [1e-15, 1e-15]}}


@pytest.mark.parametrize("place", range(17))
def test_an_edited_field_is_refused(place):
    model, data = made()
    edit = list(edits(data))[place]
    with pytest.raises(CertificateError):
        verify_certificate(model, {**data, **edit})


@pytest.mark.parametrize(
    "edit",
    [
        {"error": [0.0, 0.0]},
        {"error": [float("inf")] * 2},
        {"error": [1e-9]},
        {"format": "bfloat16"},
        {"format": "float64"},
        {"magnitude": float("inf")},
        {"magnitude": 0.0},
        {"magnitude": 1e25},
    ],
    ids=str,
)
def test_forged_arithmetic_is_refused(edit):
    """Less rounding than the model has, another format, or larger inputs."""
    model, data = made("float32")
    words = [t.replace("float32", edit.get("format", "float32"), 1) for t in data["assumptions"]]
    forged = {**data, "assumptions": words, "arithmetic": {**data["arithmetic"], **edit}}
    assert verify_certificate(model, data)
    with pytest.raises(CertificateError):
        verify_certificate(model, forged)


def test_forged_arithmetic_within_a_certificate_is_refused():
    model, data = made("float32")
    inner = copy.deepcopy(data)
    inner["arithmetic"]["error"] = [0.0, 0.0]
    assert verify_certificate(model, {**data, "within": data})
    with pytest.raises(CertificateError):
        verify_certificate(model, {**data, "within": inner})


def test_the_checker_alone_says_that_it_does_not_derive_the_rounding():
    model, data = made("float32")
    assert any(text.startswith("arithmetic") for text in checker_alone(model, data).unchecked)
    assert any("computed again" in text for text in verify_certificate(model, data).unchecked)


def test_state_that_the_model_keeps_is_an_assumption():
    class Smooth(nn.Module):
        def __init__(self):
            super().__init__()
            self.line, self.calls = nn.Linear(2, 2), [0]

        def forward(self, x):
            self.calls[0] += 1
            return torch.tanh(self.line(x))

    model = Smooth().eval()
    found = ff.certify(model, torch.zeros(1, 2), time_budget=STEPS)
    assert any("calls" in text for text in found.assumptions)
    older = {**found.to_dict(), "assumptions": found.to_dict()["assumptions"][:3]}
    assert any("calls" in text for text in verify_certificate(model, older).assumptions)
