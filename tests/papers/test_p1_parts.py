"""What in LayerNorm makes the far field right: networks that are what they are called, and claims that can fail."""

import json

import pytest
import torch
from torch import nn

from farfield.data import is_here
from farfield.errors import UnknownNameError
from farfield.graph import capture
from farfield.growth import Status, analyze
from farfield.papers import run_experiment
from farfield.papers.p1 import _parts, parts


def network(kind):
    return _parts._network(kind, 4, width=8, bias_var=0.1, seed=0)


def is_bounded(model):
    return (
        analyze(capture(model.eval(), torch.zeros(1, 4), dynamic_batch=False)).verdicts[0].status
        is Status.BOUNDED
    )


def test_every_kind_but_the_standard_network_is_bounded():
    for kind in _parts.TRAINED:
        assert is_bounded(network(kind)) == (kind != "standard"), kind
    seen = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    for name in _parts.AFTERWARDS:
        assert is_bounded(_parts.protected(name, network("standard"), seen)), name
    with pytest.raises(UnknownNameError, match="output clipped"):
        _parts.protected("output cliped", network("standard"), seen)


def test_protections_are_the_identity_where_they_should_be():
    seen = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    plain = network("standard")
    with torch.no_grad():
        for name in _parts.AFTERWARDS:
            same = _parts.protected(name, plain, seen)(seen) == plain(seen)
            assert same.double().mean() >= 0.985, name
            far = 1e4 * seen
            assert not torch.allclose(_parts.protected(name, plain, seen)(far), plain(far)), name


def test_networks_of_one_seed_begin_alike():
    first = {
        kind: next(m for m in network(kind) if isinstance(m, nn.Linear)).weight for kind in _parts.TRAINED
    }
    assert all(torch.equal(weight, first["standard"]) for weight in first.values())
    assert isinstance(list(network("tanh head"))[-2], nn.Tanh)


def ratios(changes):
    """Errors of 1 for every kind on four tables, but for those given: logarithms of far errors."""
    wobble = 0.01 * torch.randn(4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = {}
    for k, table in enumerate("abcd"):
        for bias_var in (0.01, 1.0):
            logs = {
                kind: changes.get(kind, 0.0) + float(wobble[k]) * (kind != "standard") for kind in parts.KINDS
            }
            if bias_var == 1.0:
                logs["standard"] = changes.get("bias", 0.0)
            found[table, bias_var] = {
                kind: {p: torch.full((3,), v, dtype=torch.float64).exp() for p in ("near", "far")}
                for kind, v in logs.items()
            }
    return parts.Ratios(found, tuple("abcd"), (0.01, 1.0))


def test_claims_hold_and_fail_with_what_was_measured():
    every = dict.fromkeys(parts.KINDS, -0.2) | {"standard": 0.0, "bias": -0.1}
    assert all(v.holds for v in parts._verdicts(ratios(every)))
    none = {v.claim: v.holds for v in parts._verdicts(ratios({"bias": 0.1}))}
    assert not any(none.values())
    only = {v.claim: v.holds for v in parts._verdicts(ratios({"LN first": -0.2, "RMSNorm first": -0.19}))}
    held = [claim for claim, holds in only.items() if holds]
    assert len(held) == 3 and sum(claim.startswith("RMSNorm first") for claim in held) == 2


def test_it_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    if not (is_here("yacht") and is_here("boston")):
        pytest.skip("needs the tables: farfield data fetch yacht boston")
    original, calls = parts.far_errors, []

    def counted(*args, **options):
        calls.append(options["bias_var"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args, **options)

    monkeypatch.setattr(parts, "far_errors", counted)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(parts.EXPERIMENT, tmp_path, quick=True)
    record = run_experiment(parts.EXPERIMENT, tmp_path, quick=True)
    assert len(calls) == 5  # two finished, one stopped, that one again and the last
    monkeypatch.setattr(parts, "far_errors", original)
    whole = run_experiment(parts.EXPERIMENT, tmp_path / "again", quick=True)
    assert json.dumps(record["numbers"]) == json.dumps(whole["numbers"])
