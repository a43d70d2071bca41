"""``farfield kernel``: the library's numbers on stdout, pictures in files, refusals with a sentence."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from farfield import kernels
from shape_checking import as_users_run_it


def farfield(*words):
    return subprocess.run(
        [sys.executable, "-m", "farfield", "kernel", *words], capture_output=True, text=True, timeout=300
    )


def test_json_has_the_librarys_numbers(tmp_path):
    x = np.random.default_rng(0).normal(size=(5, 3))
    np.save(tmp_path / "x.npy", x)
    lines = ["a,b,c", *(",".join(repr(float(v)) for v in row) for row in x)]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    options = ["--depth", "3", "--layer-norm", "0,2", "--bias-var", "0.2", "--weight-var", "1.5", "--json"]
    network = kernels.mlp(depth=3, layer_norm=[0, 2], bias_var=0.2, weight_var=1.5)
    for name, kind in (("x.npy", "ntk"), ("x.csv", "nngp")):
        done = farfield(str(tmp_path / name), "--kind", kind, *options)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        truth = network.function(kind)(torch.from_numpy(x))
        assert np.array_equal(np.array(found["values"]), truth.numpy())
        assert np.array_equal(np.array(found["x"]), x)
        assert found["sup_diagonal"] == network.sup_diagonal(kind)
        table = network.table(kind)
        assert found["table"] == {"degree": table.degree, "error": table.error}


def test_a_grid_in_words_and_as_a_picture(tmp_path):
    done = farfield("--layer-norm", "none", "--plot", str(tmp_path / "heat.png"))
    assert done.returncode == 0, done.stderr
    assert "all inputs: ∞" in done.stdout and "layer by layer" in done.stdout
    assert "wrote" in done.stderr and "wrote" not in done.stdout
    assert (tmp_path / "heat.png").read_bytes()[:4] == b"\x89PNG"
    done = farfield("--grid=-1,1", "--points", "3")
    assert "all inputs: 3.3" in done.stdout and "degree" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.strip().startswith("-1 "))
    truth = kernels.mlp(depth=2, layer_norm="first", bias_var=0.1).ntk(
        torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)
    )
    assert [float(v) for v in row.split()[1:]] == pytest.approx(truth[0].tolist(), rel=1e-4)


def test_infinity_survives_json():
    found = json.loads(farfield("--layer-norm", "none", "--json", "--points", "2").stdout)
    assert found["sup_diagonal"] == "inf" and found["table"] is None
    assert found["x"] == [[-25.0], [25.0]]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--layer-norm", "frist"], "layer_norm is one of"),
        (["--grid=5,1"], "lower first"),
        (["--grid=a,1"], "lower first"),
        (["--activation", "rellu"], "relu"),
        (["missing.csv"], "can't be read"),
        (["words.csv"], "can't be read"),
        (["gaps.csv"], "entries that are not"),
        (["cube.npy"], "(2, 2, 2)"),
        (["--points", "1001", "--plot", "heat.png"], "1000 inputs or fewer"),
    ],
)
def test_refusals_exit_2_with_a_sentence(words, says, tmp_path, monkeypatch, capsys):
    from farfield.cli import main

    (tmp_path / "words.csv").write_text("a\n1\nx\n")
    (tmp_path / "gaps.csv").write_text("1,nan\n")
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["farfield", "kernel", *words])
    with as_users_run_it(), pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    assert says in shown.err and not shown.out
