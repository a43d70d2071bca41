"""``farfield lnnet demo``: the library's numbers, a picture, refusals with a sentence."""

import json
import sys

import numpy as np
import pytest
import torch

import shell
from farfield import lnnet
from farfield.cli import main
from farfield.graph import as_module
from farfield.report import lnnet_figure
from shape_checking import as_users_run_it

XOR = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
PARITY = torch.tensor([0, 1, 1, 0])


def farfield(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["farfield", "lnnet", "demo", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code


def test_xor_in_words_and_as_a_picture(tmp_path, monkeypatch, capsys):
    assert farfield(monkeypatch, "--plot", str(tmp_path / "xor.svg")) == 0
    shown = capsys.readouterr()
    assert "4 points in 2 dimension(s), 2 labels: 4 right" in shown.out and "depth       1 " in shown.out
    assert "LSSR        1 → " in shown.out
    assert "wrote" in shown.err and "wrote" not in shown.out
    assert "LayerNorm 1" in (tmp_path / "xor.svg").read_text()


def test_json_has_the_librarys_numbers(monkeypatch, capsys):
    words = [
        "--points",
        "15",
        "--classes",
        "3",
        "--dimensions",
        "2",
        "--seed",
        "5",
        "--rule",
        "paper",
        "--json",
    ]
    assert farfield(monkeypatch, *words) == 0
    found = json.loads(capsys.readouterr().out)
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(15, 2, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (15,), generator=draw)
    net = lnnet.construct(x, y, rule="paper", generator=torch.Generator().manual_seed(5))
    assert found["right"] == found["points"] == 15
    assert (found["depth"], found["margin"]) == (net.depth, net.margin)
    assert found["digits_needed"] == lnnet.smallest_digits(net, x, y) <= found["digits_estimated"]
    assert found["lssr_before"] == float(lnnet.lssr(x, y)) and len(found["lssr_after"]) == net.depth


def test_a_random_problem_needs_points(monkeypatch, capsys):
    with as_users_run_it():
        assert farfield(monkeypatch, "--points", "10", "--classes", "1") == 2
    assert "2 classes or more" in capsys.readouterr().err


def test_the_figure_shows_what_the_network_does():
    net = lnnet.construct(XOR, PARITY, generator=torch.Generator().manual_seed(0))
    figure = lnnet_figure(net, XOR, PARITY)
    assert [p.title for p in figure.panels] == ["points", "projected", "LayerNorm 1", "read"]
    circle = figure.panels[2].series[1]
    assert all(abs(a * a + b * b - 1) < 1e-5 for a, b in zip(circle.x, circle.y, strict=True))
    # Read from the circle, the two labels no longer overlap; projected, they do.
    low, high = figure.panels[3].series
    assert max(low.x) < min(high.x) or max(high.x) < min(low.x)
    low, high = figure.panels[1].series
    assert not (max(low.x) < min(high.x) or max(high.x) < min(low.x))


def test_of_a_deep_network_the_first_layers_and_the_last():
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(30, 1, generator=draw, dtype=torch.float64), torch.randint(0, 2, (30,), generator=draw)
    net = lnnet.construct(x, y, generator=draw)
    titles = [p.title for p in lnnet_figure(net, x, y).panels if "LayerNorm" in p.title]
    assert net.depth > 3 and titles == ["LayerNorm 1", "LayerNorm 2", f"LayerNorm {net.depth}"]


# ------------------------------------------------------------------ build


CSV = "a,b,label\n0,0,3\n0,1,7\n1,0,7\n1,1,3\n3,2,5\n"


def test_a_file_of_points_becomes_a_network_that_other_commands_read(tmp_path):
    (tmp_path / "points.csv").write_text(CSV)
    done = shell.run(tmp_path, "lnnet", "build", "points.csv", "--save", "net.pt2", "--plot", "net.png")
    assert done.returncode == 0, done.stderr
    assert "5 points in 2 dimension(s), 3 labels: 5 right" in done.stdout
    assert "next: farfield audit net.pt2" in done.stderr and (tmp_path / "net.png").exists()
    audited = shell.run(tmp_path, "audit", "net.pt2")
    assert audited.returncode == 0 and "BOUNDED" in audited.stdout
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [3.0, 2.0]])
    program = as_module(tmp_path / "net.pt2")
    kind = next(p.dtype for p in program.parameters())
    assert program(x.to(kind)).argmax(1).tolist() == [0, 2, 2, 0, 1]  # places among the labels 3, 5, 7


def test_labels_by_name_and_other_kinds_of_files(tmp_path):
    (tmp_path / "points.csv").write_text(CSV)
    by_name = shell.run(tmp_path, "lnnet", "build", "points.csv", "--label", "b", "--json")
    assert json.loads(by_name.stdout)["classes"] == 3
    rows = np.array([[0.0, 0.5, 1], [1.0, 0.1, 0], [2.0, 0.3, 1]])
    np.save(tmp_path / "points.npy", rows)
    found = json.loads(shell.run(tmp_path, "lnnet", "build", "points.npy", "--json").stdout)
    assert (found["points"], found["right"]) == (3, 3)


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (CSV, ["--label", "c"], "no column named 'c'"),
        ("a,b\n0,0.5\n1,2\n", [], "column 2 has 0.5. Name the right column with --label"),
        ("0\n1\n", [], "no table of two columns or more"),
        ("a,b,label\n0,0,1\n0,0,2\n", [], "label"),
        (CSV, ["--save", "nowhere/net.pt2"], "no folder 'nowhere'"),
    ],
    ids=["column", "fraction", "single", "contradiction", "folder"],
)
def test_files_that_give_no_network(tmp_path, text, words, said):
    (tmp_path / "points.csv").write_text(text)
    done = shell.run(tmp_path, "lnnet", "build", "points.csv", *words)
    assert done.returncode == 2 and said in done.stderr and done.stderr.startswith("error: ")
