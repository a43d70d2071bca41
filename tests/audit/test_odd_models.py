"""The audit gives a verdict, or a plain refusal, on whatever people write."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.distributions import Distribution, Normal

from audit.odd_models import CASES, Odd, X, plain
from farfield.audit import audit, rules
from farfield.errors import FarfieldError
from farfield.growth import _verdict
from shape_checking import as_users_run_it


@pytest.mark.filterwarnings("ignore")  # torch's own, about TorchScript and casts of complex modules
@pytest.mark.parametrize("name", CASES)
def test_a_verdict_and_a_report(name):
    make, inputs, allowed = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make().eval()
        result = audit(model, inputs, rays=2)
    assert result.verdict.name in allowed, str(result.report)
    data = json.loads(json.dumps(result.to_dict()))
    assert "note" not in data["rays"], data["rays"]["note"]
    assert not [r for r in data["rules"] if "failed:" in r["reason"]]


@pytest.mark.filterwarnings("ignore")
def test_a_traced_module_is_told_what_to_pass():
    traced = torch.jit.trace(plain().eval(), X)
    assert "pass the nn.Module" in str(audit(traced, X).report.verdict().reason)


def test_the_checks_of_distributions_are_as_they_were():
    before = Distribution._validate_args
    audit(Odd(lambda m, x: Normal(m.a(x), 1.0).mean).eval(), (X,), rays=0)
    assert Distribution._validate_args == before


@pytest.mark.parametrize("step", ["find_witness", "escape_paths", "insertion_cut", "bounding_cut", "differs"])
def test_a_step_that_fails_costs_a_note_and_no_verdict(step, monkeypatch):
    def fail(*args, **options):
        raise IndexError("made to fail")

    monkeypatch.setattr(_verdict, step, fail)
    for model, allowed in ((plain(), "UNBOUNDED"), (plain(nn.LayerNorm(8)), "BOUNDED")):
        result = audit(model.eval(), (X,), rays=0)
        searched = step in ("find_witness", "escape_paths", "insertion_cut")
        without = allowed == "UNBOUNDED" and step == "find_witness"  # no witness, no proof
        assert result.verdict.name == ("UNKNOWN" if without else allowed)
        notes = [n["text"] for n in result.to_dict()["growth"]["notes"]]
        assert any("made to fail" in text for text in notes) == (searched == (allowed == "UNBOUNDED"))


def test_a_rule_that_fails_is_unknown_and_no_verdict_is_lost(monkeypatch):
    def fail(context):
        raise IndexError("made to fail")

    real = rules.rule
    broken = rules.Rule("FF007", "broken", fail, real("FF007").triggers, real("FF007").passes)
    monkeypatch.setattr(rules, "rule", lambda code: broken if code == "FF007" else real(code))
    result = audit(plain().eval(), (X,), rays=0)
    found = next(r for r in result.results if r.code == "FF007")
    assert (
        result.verdict.name == "UNBOUNDED"
        and found.outcome.value == "unknown"
        and "made to fail" in found.reason
    )


def test_a_plot_that_fails_is_empty_and_says_so(monkeypatch):
    result = audit(plain().eval(), (X,))
    monkeypatch.setattr(type(result.report.program), "evaluate", lambda *args, **options: 1 / 0)
    assert result.rays["series"] == [] and "ZeroDivisionError" in result.rays["note"]


def test_rays_are_computed_when_asked_for_and_in_one_evaluation(monkeypatch):
    model = plain().eval()
    result = audit(model, (X,))
    program = type(result.report.program)
    calls = []
    evaluate = program.evaluate
    monkeypatch.setattr(program, "evaluate", lambda *a, **o: calls.append(a) or evaluate(*a, **o))
    assert len(result.rays["series"]) == 7 and len(calls) == 3  # two find out that rows are samples
    assert result.rays is result.rays and len(calls) == 3


@pytest.mark.parametrize("inputs", [(torch.zeros(3, 5),), (), (X.numpy()[:, :1],), ("text",)])
def test_inputs_that_do_not_fit_are_refused_plainly(inputs):
    with pytest.raises(FarfieldError, match="itself fails on the example") as caught:
        audit(plain(), inputs)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("model", [None, torch.relu, lambda x: x])
def test_what_is_no_model_is_refused_plainly(model):
    with as_users_run_it(), pytest.raises(FarfieldError, match=r"A model is an nn\.Module"):
        audit(model, (X,))
