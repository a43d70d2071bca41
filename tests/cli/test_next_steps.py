"""Every next step that a command prints is read from its output and run, whatever file the model is in."""

import re
import shlex

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from farfield.cli._app import app
from farfield.graph import write_program

ROWS = torch.rand(400, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)).eval()


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.stdout


def write(kind):
    np.save("rows.npy", ROWS.numpy())
    if kind == "fixed.pt2":
        torch.export.save(torch.export.export(net(), (ROWS[:1],)), "model.pt2")
        return "model.pt2"
    if kind == "open.pt2":
        batch = ({0: torch.export.Dim("batch")},)
        torch.export.save(torch.export.export(net(), (ROWS[:4],), dynamic_shapes=batch), "model.pt2")
        return "model.pt2"
    pytest.importorskip("onnxscript")
    program = torch.export.export(net(), (ROWS[:4],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    write_program(program, "model.onnx", names=["output"])
    return "model.onnx"


def next_step(said, verb):
    """The command of this verb in an output, in words."""
    return shlex.split(re.search(rf"farfield ({verb} [^#(,;\n]+)", said)[1])


@pytest.mark.parametrize(
    ("kind", "out"),
    [("fixed.pt2", "out.pt2"), ("open.pt2", "out.pt2"), ("open.pt2", "out.onnx"), ("model.onnx", "out.onnx")],
)
def test_repair_certify_verify(kind, out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("onnxscript")
    said = run("repair", write(kind), "--data", "rows.npy", "--out", out)
    said = run(*next_step(said, "certify"), "--time", "0.5")
    assert "BOUNDED" in said
    assert "accepted" in run(*next_step(said, "verify"))


@pytest.mark.parametrize("kind", ["fixed.pt2", "open.pt2", "model.onnx"])
def test_audit_repair_audit_certify(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("audit", write(kind), "--fail-on", "none", "--data", "rows.npy")
    fix = next_step(re.sub(r"\n +", " ", said[said.index("farfield repair") :]).split("  ")[0], "repair")
    out = fix[fix.index("--out") + 1]
    run(*fix)
    said = run("audit", out, "--fail-on", "unknown")
    step = next_step(said, "certify")
    run(*step[: step.index("gives")], "--time", "0.5")
