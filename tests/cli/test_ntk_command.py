"""``farfield ntk``: the library's numbers on stdout, kernels and pictures in files, refusals with a sentence."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from farfield.cli._app import app
from farfield.errors import FarfieldError
from farfield.ntk import empirical_ntk, layer_contributions, spectrum

SOURCE = """
import torch
from torch import nn
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))
def words():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 1))
def pair():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 2)
        def forward(self, x):
            return self.net(x), x
    return Pair()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "ntk_command_models.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("ntk_command_models", None)
    return tmp_path


def run(*words):
    """Exit code, stdout and stderr, errors turned into codes as the program does."""
    result = CliRunner().invoke(app, ["ntk", *words])
    code = result.exit_code
    if isinstance(result.exception, FarfieldError):
        code = 2
    elif result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return code, result.stdout, f"{result.stderr}{result.exception or ''}"


def model():
    from ntk_command_models import net

    return net().eval()


def data(folder, n=6):
    x = np.random.default_rng(0).normal(size=(n, 4))
    np.save(folder / "x.npy", x)
    return torch.from_numpy(x)


def test_json_has_the_librarys_numbers(folder):
    x = data(folder)
    code, out, err = run("ntk_command_models:net", "--data", "x.npy", "--json", "--double")
    assert code == 0, err
    found, net = json.loads(out), model().double()
    truth = empirical_ntk(net, x)
    assert np.array_equal(np.array(found["values"]), truth.numpy())
    assert found["spectrum"]["eigenvalues"] == spectrum(truth).eigenvalues.tolist()
    assert found["spectrum"]["condition"] == spectrum(truth).condition
    parts = layer_contributions(net, x)
    assert set(found["shares"]) == set(parts)
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert list(found["shares"].values()) == sorted(found["shares"].values(), reverse=True)
    share = float(parts["4.weight"].trace() / truth.trace())
    assert found["shares"]["4.weight"] == pytest.approx(share, rel=1e-12)
    assert found["method"] in err and found["reason"] in err and found["dtype"] == "float64"


def test_for_a_person(folder):
    code, out, err = run("ntk_command_models:net", "--input", "8x4")
    assert code == 0, err
    for word in (
        "8 inputs of shape (4,)",
        "method ",
        "λ_max",
        "condition",
        "effective rank",
        "4.weight",
        "%",
    ):
        assert word in out
    again = run("ntk_command_models:net", "--input", "8x4")[1]
    assert again == out and run("ntk_command_models:net", "--input", "8x4", "--seed", "1")[1] != out
    code, out, _ = run("ntk_command_models:net", "--input", "8x4", "--outputs", "full")
    assert code == 0 and "of 24" in out
    code, out, _ = run(
        "ntk_command_models:net", "--input", "8x4", "--parameters", "1", "--method", "jacobian"
    )
    assert code == 0 and "jacobian: asked for" in out and "4.weight" not in out and "1.weight" in out


def test_integers_and_a_singular_kernel(folder):
    code, out, err = run("ntk_command_models:words", "--input", "5x3:int64", "--vocabulary", "10")
    assert code == 0, err
    np.save(folder / "t.npy", np.array([[1, 2, 3], [1, 2, 3]], dtype=np.int32))
    code, out, err = run("ntk_command_models:words", "--data", "t.npy")
    assert code == 0 and "singular" in out


def test_files(folder):
    x = data(folder).float()
    options = ("--data", "x.npy", "--out", "kernel.npy", "--checkpoint", "tiles", "--plot", "figure.png")
    code, out, err = run("ntk_command_models:net", *options, "--json")
    assert code == 0, err
    assert "values" not in json.loads(out)
    stored = np.load(folder / "kernel.npy")
    assert np.array_equal(stored, empirical_ntk(model(), x).numpy())
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert list((folder / "tiles").glob("*.result")) and err.count("wrote ") == 2
    (folder / "kernel.npy").write_bytes(b"")
    (folder / "kernel.npy").unlink()
    assert run("ntk_command_models:net", *options)[0] == 0
    assert np.array_equal(np.load(folder / "kernel.npy"), stored)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ntk_command_models:net"], "give one of them"),
        (["ntk_command_models:net", "--input", "8x4", "--data", "x.npy"], "give one of them"),
        (["ntk_command_models:net", "--data", "absent.npy"], "can't be read"),
        (["ntk_command_models:net", "--data", "words.npy"], "can't be read"),
        (["ntk_command_models:net", "--input", "8x4", "--outputs", "most"], "'full', 'trace', 'sum'"),
        (["ntk_command_models:net", "--input", "8x4", "--outputs", "7"], "an output has shape (3,)"),
        (["ntk_command_models:net", "--input", "8x4", "--parameters", "9"], "no parameter"),
        (["ntk_command_models:net", "--input", "8x4", "--memory", "much"], "memory size"),
        (["ntk_command_models:net", "--input", "1001x4", "--plot", "f.png"], "1000 rows or fewer"),
        (["ntk_command_models:pair", "--input", "8x4"], "returns a tuple"),
        (["ntk_command_models:absent", "--input", "8x4"], "no attribute"),
        (["model.pt2", "--input", "8x4"], "exported program"),
        (["ntk_command_models:net", "--input", "8x4", "--method", "magic"], "magic"),
    ],
)
def test_refusals(folder, words, says):
    np.save(folder / "words.npy", np.array(["a", "b"]))
    (folder / "model.pt2").write_bytes(b"")
    code, out, err = run(*words)
    assert code == 2 and says in err and not out


def test_as_users_run_it(folder):
    done = subprocess.run(
        [sys.executable, "-m", "farfield", "ntk", "ntk_command_models:net", "--input", "6x4", "--json"],
        capture_output=True, text=True, timeout=300, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["values"]) == 6
