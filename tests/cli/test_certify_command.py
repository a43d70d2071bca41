"""``farfield certify`` and ``farfield verify`` around stand-ins for what computes and what checks."""

import json
import os
import signal

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import farfield.certify
from farfield.certify._certificate import Certificate
from farfield.cli._app import app, main
from farfield.errors import FarfieldError, InvalidValueError
from farfield.graph import CaptureError

SOURCE = """
from torch import nn
def net(): return nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 2))
"""


class RefusedError(FarfieldError):
    pass


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "standin_models.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def certified(monkeypatch):
    """Replaces the computation; returns the calls it received."""
    calls = []

    def certify(model, inputs, *, time_budget, domain, progress, **options):
        assert isinstance(model, nn.Module) and not model.training
        progress(0.1, "a stage with quite a long name")
        progress(0.2, "short")
        calls.append({"inputs": inputs, "seconds": time_budget.limit.seconds, "domain": domain, **options})
        one = torch.ones(1, 2, dtype=torch.float64)
        scale = float("inf") if options.get("output") == "open" else 2.0
        return Certificate(-scale * one, scale * one, -one, one, method="dual", model_hash="cd" * 32)

    monkeypatch.setattr(farfield.certify, "certify", certify, raising=False)
    return calls


@pytest.fixture
def checked(monkeypatch):
    answers = {"raises": None, "returns": True, "calls": []}

    def verify_certificate(model, path, inputs=None):
        answers["calls"].append((type(model).__name__, str(path), inputs))
        if answers["raises"] is not None:
            raise answers["raises"]
        return answers["returns"]

    monkeypatch.setattr(farfield.certify, "verify_certificate", verify_certificate, raising=False)
    return answers


def run(*words):
    """Exit code, stdout and stderr, errors turned into codes as the program does."""
    result = CliRunner().invoke(app, list(words))
    code = result.exit_code
    if isinstance(result.exception, FarfieldError):
        code = 2
    elif result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return code, result.stdout, f"{result.stderr}{result.exception or ''}"


def test_certify_writes_everything_and_keeps_stdout_clean(folder, certified):
    code, out, err = run(
        "certify", "standin_models:net", "--input", "1x8", "--time", "5", "--out", "cert.json",
        "--json", "--card", "card.md", "--html", "report.html",
    )  # fmt: skip
    assert code == 0, err
    stored = json.loads((folder / "cert.json").read_text())
    assert json.loads(out) == stored
    assert stored["lower"] == [-2.0, -2.0]
    assert Certificate.load(folder / "cert.json").model_hash == "cd" * 32
    assert "farfield verify cert.json standin_models:net" in (folder / "card.md").read_text(encoding="utf-8")
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    assert err.count("wrote ") == 3
    (call,) = certified
    assert call["seconds"] == 5.0 and call["domain"] is None and "output" not in call
    assert [tuple(t.shape) for t in call["inputs"]] == [(1, 8)]


def test_certify_prints_for_a_person_and_exits_1_where_a_bound_is_missing(folder, certified):
    code, out, _ = run("certify", "standin_models:net", "--input", "1x8")
    assert code == 0 and "BOUNDED" in out and "not a claim of accuracy" in out
    code, out, _ = run("certify", "standin_models:net", "--input", "1x8", "--output", "open")
    assert code == 1 and "NOT PROVED BOUNDED" in out
    assert certified[1]["output"] == "open" and certified[0]["seconds"] == 60.0


def test_a_box_covers_every_real_entry(folder, certified):
    words = ("--input", "1x8", "--input", "1x3:int64", "--input", "1x2")
    code, _, err = run("certify", "standin_models:net", *words, "--box=-1,2.5")
    assert code == 0, err
    assert certified[0]["domain"] == {"kind": "box", "lower": [-1.0] * 10, "upper": [2.5] * 10}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("standin_models:absent", "--input", "1x8"), "no attribute"),
        (("standin_models:net", "--input", "eight"), "sizes joined by x"),
        (("standin_models:net", "--input", "1x8", "--time", "0"), "positive"),
        (("standin_models:net", "--input", "1x8", "--time", "nan"), "positive"),
        (("standin_models:net", "--input", "1x8", "--box", "1"), "LO,HI"),
        (("standin_models:net", "--input", "1x8", "--box", "2,1"), "LO ≤ HI"),
        (("standin_models:net", "--input", "1x8", "--box", "nan,1"), "LO ≤ HI"),
        (("standin_models:net", "--box", "0,1"), "--input"),
        (("standin_models:net", "--nonsense"), "nonsense"),
        (("absent.pt2",), "no file"),
    ],
)
def test_usage_errors_of_certify(folder, certified, words, message):
    code, _, err = run("certify", *words)
    assert code == 2 and message in err
    assert not certified


def stored(folder):
    one = torch.ones(1, 2, dtype=torch.float64)
    Certificate(-2 * one, 2 * one, -one, one, model_hash="cd" * 32).save(folder / "cert.json")


def test_verify_accepts(folder, checked):
    stored(folder)
    code, out, err = run("verify", "cert.json", "standin_models:net")
    assert code == 0, err
    assert "accepted" in out and "BOUNDED" in out
    code, out, _ = run("verify", "cert.json", "standin_models:net", "--input", "1x8", "--json")
    assert code == 0
    assert json.loads(out) == {
        "accepted": True,
        "reason": None,
        "unchecked": [],
        "certificate": "cert.json",
        "target": "standin_models:net",
        "model_hash": "cd" * 32,
    }
    first, second = checked["calls"]
    assert first == ("Sequential", "cert.json", None)
    assert tuple(second[2][0].shape) == (1, 8)


@pytest.mark.parametrize("error", [RefusedError("another model"), InvalidValueError("another model")])
def test_verify_refuses_with_the_reason(folder, checked, error):
    stored(folder)
    checked["raises"] = error
    code, out, _ = run("verify", "cert.json", "standin_models:net")
    assert code == 1 and "refused: another model" in out and "accepted" not in out
    code, out, _ = run("verify", "cert.json", "standin_models:net", "--json")
    assert code == 1 and json.loads(out)["reason"] == "another model"


def test_verify_without_a_reason_is_still_a_refusal(folder, checked):
    stored(folder)
    checked["returns"] = False
    assert run("verify", "cert.json", "standin_models:net")[0] == 1


def test_usage_errors_of_verify(folder, checked):
    assert run("verify", "absent.json", "standin_models:net")[0] == 2
    (folder / "cert.json").write_text("{}")
    code, _, err = run("verify", "cert.json", "standin_models:net")
    assert code == 2 and "farfield certify" in err
    stored(folder)
    assert run("verify", "cert.json", "standin_models:absent")[0] == 2
    assert not checked["calls"]
    checked["raises"] = CaptureError("the example does not fit")
    code, out, err = run("verify", "cert.json", "standin_models:net", "--input", "1x3")
    assert code == 2 and "does not fit" in err and "refused" not in out


def test_the_program_turns_errors_into_exit_codes(folder, checked, monkeypatch, capsys):
    stored(folder)
    for error, code in ((RuntimeError("boom"), 3), (CaptureError("no"), 2)):
        checked["raises"] = error
        monkeypatch.setattr("sys.argv", ["farfield", "verify", "cert.json", "standin_models:net"])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == code
    assert "boom" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["certify", "verify"])
def test_help(command):
    code, out, _ = run(command, "--help")
    assert code == 0 and "Exit code 0" in out


def test_an_interrupt_keeps_the_best_bounds(folder, monkeypatch):
    def certify(model, inputs, *, time_budget, domain, progress, **options):
        search = time_budget.share(0.9)
        os.kill(os.getpid(), signal.SIGINT)
        assert search.over and search.share(0.5).over and not time_budget.over
        one = torch.ones(1, 2, dtype=torch.float64)
        return Certificate(-2 * one, 2 * one, -one, one, method="dual", model_hash="cd" * 32)

    monkeypatch.setattr(farfield.certify, "certify", certify, raising=False)
    before = signal.getsignal(signal.SIGINT)
    done = CliRunner().invoke(
        app, ["certify", "standin_models:net", "--input", "1x8", "--time", "600", "--out", "cert.json"]
    )
    assert done.exit_code == 130 and "the best bounds by then" in done.output
    assert "Interrupted" in (folder / "cert.json").read_text()
    assert signal.getsignal(signal.SIGINT) is before
