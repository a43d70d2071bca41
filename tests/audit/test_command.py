"""``farfield audit`` as a script in somebody's CI meets it."""

import json

import pytest
import torch
from torch import nn

import shell

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        self.a, self.n, self.b = nn.Linear(8, 16), nn.LayerNorm(16) if norm else nn.Identity(), nn.Linear(16, 1)
    def forward(self, x):
        return self.b(torch.relu(self.n(self.a(x))))

def bad(): return Net()
def good(): return Net(True)
def number(): return 3
def broken(): raise RuntimeError("out of cheese")
ready = Net(True)

class Odd(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x).cumprod(-1)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(SOURCE)
    return tmp_path


def run(folder, *words):
    return shell.run(folder, "audit", *words)


@pytest.mark.parametrize(
    ("target", "words", "code"),
    [
        ("mine:good", (), 0),
        ("mine:bad", (), 1),
        ("mine:bad", ("--fail-on", "none"), 0),
        ("mine:bad", ("--fail-on", "FF002"), 0),
        ("mine:bad", ("--fail-on", "ff001,FF002"), 1),
        ("mine:Odd", (), 0),
        ("mine:Odd", ("--fail-on", "unknown"), 1),
        ("mine:bad", ("--fail-on", "unknown"), 1),
        ("mine:ready", (), 0),
    ],
)
def test_exit_codes(folder, target, words, code):
    done = run(folder, target, "--input", "1x8", *words)
    assert done.returncode == code, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mine:nothing", "--input", "1x8"), "no attribute"),
        (("mine", "--input", "1x8"), "pkg.mod:callable"),
        (("absent.module:x", "--input", "1x8"), "no module"),
        (("mine:number", "--input", "1x8"), "not a torch.nn.Module"),
        (("mine:good", "--input", "eight"), "sizes joined by x"),
        (("mine:good", "--input", "1x8:complex"), "sizes joined by x"),
        (("mine:good", "--input", "1x8", "--fail-on", "maybe"), "fail-on"),
        (("absent.pt2", "--input", "1x8"), "no file"),
        (("hf:absent", "--input", "1x8"), "local folder"),
    ],
)
def test_usage_errors_exit_2_and_say_what_to_write(folder, words, message):
    done = run(folder, *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


def test_json_html_and_sarif(folder):
    done = run(folder, "mine:bad", "--input", "1x8", "--json", "--html", "r.html", "--sarif", "r.sarif")
    assert done.returncode == 1
    data = json.loads(done.stdout)
    assert data["verdict"] == "UNBOUNDED"
    page = (folder / "r.html").read_text(encoding="utf-8")
    assert "<html" in page.lower() and "FF001" in page
    assert json.loads((folder / "r.sarif").read_text())["version"] == "2.1.0"
    assert "wrote" in done.stderr


def test_a_pt2_file(folder):
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 1)).eval()
    torch.export.save(torch.export.export(model, (torch.zeros(2, 8),)), folder / "model.pt2")
    done = run(folder, "model.pt2", "--input", "2x8", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "BOUNDED"


def test_the_users_own_error_is_shown_as_such(folder):
    done = run(folder, "mine:broken", "--input", "1x8")
    assert done.returncode in (2, 3)
    assert "out of cheese" in done.stderr


def test_terminal_view_names_the_verdict_the_path_and_the_fix(folder):
    text = run(folder, "mine:bad", "--input", "1x8").stdout
    assert "UNBOUNDED" in text and "FF001" in text and "→" in text and "LayerNorm" in text
