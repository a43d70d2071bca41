"""Every rule fires on its own example and not on the other, with evidence, a place and a next step."""

import dataclasses
import json

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.audit import Outcome, audit, rule, rule_codes
from farfield.audit.rules import run_rules
from farfield.errors import UnknownNameError


def check_rule(item):
    """The contract of a rule; raises AssertionError where it is broken."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bad, bad_inputs = item.triggers()
        good, good_inputs = item.passes()
    fired = next(
        r for r in audit(bad.eval(), bad_inputs, rays=0, codes=[item.code]).results if r.code == item.code
    )
    assert fired.outcome is Outcome.FAILED, f"{item.code} does not fire on its own example: {fired.outcome}"
    for finding in fired.findings:
        assert finding.code == item.code
        assert len(finding.message) > 30 and finding.message.endswith((".", ")"))
        assert len(finding.action) > 20
        assert finding.place.module_path or finding.place.node
        json.dumps(dict(finding.evidence), allow_nan=True)
    quiet = next(
        r for r in audit(good.eval(), good_inputs, rays=0, codes=[item.code]).results if r.code == item.code
    )
    assert quiet.outcome in (Outcome.PASSED, Outcome.NOT_APPLICABLE), (
        f"{item.code} fires on its counter-example"
    )
    assert not quiet.findings
    assert quiet.reason


@pytest.mark.parametrize("code", rule_codes())
def test_rule_contract(code):
    check_rule(rule(code))


def test_a_rule_that_never_fires_and_one_that_always_fires_are_caught(monkeypatch):
    silent = dataclasses.replace(rule("FF001"), check=lambda context: (Outcome.PASSED, (), "all is well"))
    eager = dataclasses.replace(rule("FF004"), passes=rule("FF004").triggers)
    from farfield.audit import rules

    monkeypatch.setattr(rules, "rule", lambda code: silent if code == "FF001" else eager)
    with pytest.raises(AssertionError, match="does not fire"):
        check_rule(silent)
    with pytest.raises(AssertionError, match="counter-example"):
        check_rule(eager)


def test_unknown_code():
    with pytest.raises(UnknownNameError, match="FF001"):
        rule("FF01")


def codes(model, *inputs):
    return {f.code for f in ff.audit(model.eval(), inputs, rays=0).findings}


def test_a_flag_that_is_accepted_and_never_applied():
    class Net(nn.Module):
        def __init__(self, layer_norm=True):
            super().__init__()
            self.layer_norm = layer_norm
            self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 1)

        def forward(self, x):
            return self.b(torch.relu(self.a(x)))

    assert {"FF001", "FF005"} <= codes(Net(), torch.zeros(1, 4))
    assert "FF005" not in codes(Net(layer_norm=False), torch.zeros(1, 4))


def test_weight_norm_is_not_a_forgotten_norm():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
    assert "FF005" not in codes(nn.Sequential(layer, nn.ReLU(), nn.Linear(8, 1)), torch.zeros(1, 4))


def test_concatenated_raw_input_bypasses_the_norm_and_the_path_names_it():
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16))
            self.head = nn.Linear(22, 1)

        def forward(self, x):
            return self.head(torch.cat([self.inner(x), x], -1))

    result = ff.audit(Skip().eval(), (torch.zeros(1, 6),), rays=0)
    finding = next(f for f in result.findings if f.code == "FF002")
    assert "inner.1" in finding.message and "head" in finding.message


def test_half_precision_ends_early():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.n, self.b = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 1)

        def forward(self, x):
            return self.b(self.n(self.a(x)))

    result = ff.audit(Half().half().eval(), (torch.zeros(1, 6, dtype=torch.float16),), rays=0)
    finding = next(f for f in result.findings if f.code == "FF006")
    assert finding.evidence["magnitude"] <= 1e6


def test_float32_guarantee_reaches_far_and_says_how_far():
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1)).eval()
    result = next(r for r in ff.audit(model, (torch.zeros(1, 6),), rays=0).results if r.code == "FF006")
    assert result.outcome is Outcome.PASSED and "1e+" in result.reason


def test_multiple_batch_norms_are_one_finding():
    model = nn.Sequential(
        nn.Linear(6, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.BatchNorm1d(16),
        nn.Linear(16, 1),
    )
    findings = [f for f in ff.audit(model.eval(), (torch.zeros(2, 6),), rays=0).findings if f.code == "FF003"]
    assert len(findings) == 1 and "1 more" in findings[0].message


def test_saturating_head_is_a_note_not_an_error():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid()).eval()
    result = ff.audit(model, (torch.zeros(1, 6),), rays=0)
    assert result.verdict.name == "BOUNDED"
    assert [(f.code, f.severity) for f in result.findings] == [("FF008", "note")]


def test_rules_see_not_applicable_as_a_result():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    outcomes = {r.code: r for r in ff.audit(model, (torch.zeros(1, 6),), rays=0).results}
    assert outcomes["FF003"].outcome is Outcome.NOT_APPLICABLE and outcomes["FF003"].reason
    assert len(outcomes) == len(rule_codes())


def test_only_some_rules(monkeypatch):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    result = audit(model, (torch.zeros(1, 6),), rays=0, codes=["FF001"])
    assert [r.code for r in result.results] == ["FF001"]
    assert run_rules is not None
