"""An ordinary error is not a bug in farfield: exit code 2, one line, before the work begins where it can be."""

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import shell
from waiting import until

BUILDERS = """
import torch
from torch import nn

def good():
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

def raises():
    return {}["weights"]

def imports():
    import nothing_of_that_name

def wants(argument):
    return nn.Linear(1, 1)

class Sly(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("a\\u202eb\\u200b", nn.Linear(2, 1))

    def forward(self, x):
        return self._modules["a\\u202eb\\u200b"](x)

def slow():
    import time
    time.sleep(600)
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "own.py").write_text(BUILDERS)
    (tmp_path / "broken.py").write_text("def f(:\n")
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).eval()
    torch.export.save(torch.export.export(model, (torch.zeros(1, 2),)), tmp_path / "good.pt2")
    data = (tmp_path / "good.pt2").read_bytes()
    (tmp_path / "damaged.pt2").write_bytes(data[: len(data) // 2])
    (tmp_path / "damaged.npy").write_bytes(b"\x93NUMPY\x01\x00nonsense")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{")
    (tmp_path / "file").write_text("")
    return tmp_path


def run(place: Path, *words: str, **options) -> subprocess.CompletedProcess:
    if not options:
        return shell.run(place, *words)
    paths = os.pathsep.join(["src", *sys.path])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(Path(p).absolute()) for p in paths.split(os.pathsep) if p),
    }
    environment.pop("FARFIELD_CHECK_SHAPES", None)
    environment["PYTHONDONTWRITEBYTECODE"] = (
        "1"  # a limit on files would leave half of one that everybody reads
    )
    return subprocess.run(
        [sys.executable, "-m", "farfield", *words], cwd=place, env=environment, capture_output=True, text=True,
        timeout=300, check=False, **options,
    )  # fmt: skip


ERRORS = {
    "no file": (["audit", "absent.pt2"], "absent.pt2"),
    "a damaged program": (["audit", "damaged.pt2"], "damaged.pt2|zip|archive"),
    "a damaged certificate": (["verify", "damaged.npy", "good.pt2"], "JSON"),
    "a damaged array": (["ntk", "own:good", "--data", "damaged.npy"], "damaged.npy"),
    "a damaged folder of transformers": (["audit", "hf:hf", "--input", "1x8:int64"], "transformers"),
    "an oversized input": (["audit", "own:good", "--input", "1000000x1000000"], "4,000 GB"),
    "an oversized input of certify": (["certify", "own:good", "--input", "1000000x1000000"], "4,000 GB"),
    "an input beyond counting": (["audit", "own:good", "--input", "9" * 40 + "x2"], "GB"),
    "the model's own error": (
        ["audit", "own:raises", "--input", "1x2"], r"own code.*KeyError: 'weights' \(own.py, line 9, in raises\)"
    ),
    "the model's own import": (["audit", "own:imports", "--input", "1x2"], "own code.*nothing_of_that_name"),
    "a syntax error": (["audit", "broken:f", "--input", "1x2"], r"own code.*SyntaxError.*broken.py, line 1"),
    "a missing argument": (["audit", "own:wants", "--input", "1x2"], "own code.*argument"),
    "a missing folder": (["audit", "own:good", "--input", "1x2", "--html", "no/where.html"], "no folder 'no'"),
    "a folder for a file": (["certify", "own:good", "--input", "1x2", "--out", "hf"], "is a folder"),
    "a missing folder of certify": (["certify", "own:slow", "--input", "1x2", "--card", "no/c.md"], "no folder 'no'"),
    "a missing folder of ntk": (["ntk", "own:slow", "--input", "4x2", "--out", "no/k.npy"], "no folder 'no'"),
    "a file for a folder": (["audit-all", "good.pt2", "--out", "file/out"], "is a file"),
    "a missing folder of kernel": (["kernel", "--plot", "no/k.png"], "no folder 'no'"),
    "a missing folder of lnnet": (["lnnet", "demo", "--plot", "no/k.png"], "no folder 'no'"),
    "read-only": (["audit", "own:good", "--input", "1x2", "--sarif", "/proc/farfield.sarif"], "/proc"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_exit_two_and_one_line(place, name):
    words, message = ERRORS[name]
    done = run(place, *words)
    assert done.returncode == 2, (done.returncode, done.stderr[-1500:])
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("error: ") and len(lines) == 1, done.stderr
    assert re.search(message, lines[-1]), lines[-1]
    assert "bug" not in done.stderr and done.stdout == ""


def test_a_full_disk(place):
    """As a limit on the size of files shows itself: the write fails, and no half of a file is left."""
    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))}
    done = run(place, "audit", "good.pt2", "--html", "page.html", **limit)
    assert done.returncode == 2, done.stderr[-1500:]
    assert "File too large: 'page.html'" in done.stderr.splitlines()[-1]
    assert not (place / "page.html").exists() and not list(place.glob(".*.part"))


def test_a_bug_is_still_a_bug(place):
    code = (
        "import farfield.cli._app as a, farfield.cli.env as env\n"
        "def bug(): raise KeyError('ours')\n"
        "a.app.command('boom')(bug)\n"
        "import sys; sys.argv = ['farfield', 'boom']; a.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "Traceback" in done.stderr and "bug in farfield" in done.stderr


def test_altered_certificates_are_refused(place):
    assert run(place, "certify", "good.pt2", "--time", "1", "--out", "c.json").returncode == 0
    certificate = json.loads((place / "c.json").read_text())
    changes = {"lower": "x", "proofs": None, "output": 7, "domain": {"kind": []}, "model_hash": None}
    for key, value in changes.items():
        (place / "altered.json").write_text(json.dumps({**certificate, key: value}))
        done = run(place, "verify", "altered.json", "good.pt2")
        assert done.returncode in (1, 2) and "Traceback" not in done.stderr, (key, done.stderr[-800:])


def test_names_are_visible_in_every_output(place):
    words = ["audit", "own:Sly", "--input", "1x2", "--fail-on", "none"]
    done = run(place, *words, "--json", "--sarif", "s.json", "--html", "p.html")
    assert done.returncode == 0, done.stderr[-1500:]
    shown = [
        done.stdout,
        (place / "s.json").read_text(),
        (place / "p.html").read_text(),
        run(place, *words).stdout,
    ]
    for text in shown:
        assert not set("\u202e\u200b") & set(text) and "\\u202e" in text
    json.loads(done.stdout)


def test_an_interrupt_says_what_is_kept(place):
    (place / "registry.jsonl").write_text(
        json.dumps({"path": "good.pt2"})
        + "\n"
        + json.dumps({"path": "w.pt", "builder": "own:slow", "inputs": "1x2"})
    )
    torch.save({"weight": torch.zeros(1)}, place / "w.pt")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(Path(p).absolute()) for p in ["src", *sys.path] if p),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "farfield", "audit-all", "registry.jsonl", "--out", "out", "--workers", "2"],
        cwd=place, env=environment, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:  # fmt: skip
        rows = place / "out" / "audits.jsonl"
        until(lambda: rows.exists() and rows.read_text(), alive=lambda: running.poll() is None)
        running.send_signal(signal.SIGINT)
        _, talk = running.communicate(timeout=100)
    assert running.returncode == 130
    assert "1 rows are in out/audits.jsonl" in talk and "run the same command again" in talk


FLAGS = {
    "a share above one": (["repair", "own:line", "--data", "rows.npy", "--keep", "1.5"], "--keep is a share"),
    "an unknown place": (["repair", "own:line", "--data", "rows.npy", "--at", "no"], "--at names .*: weight$"),
    "data and an input": (["audit", "own:line", "--data", "rows.npy", "--input", "1x2"], "leave --input out"),
    "a tensor too many": (["audit", "own:line", "--input", "1x2", "--input", "1x2"], "(?!.*example_inputs)"),
    "no worker": (["audit-all", ".", "--out", "out", "--workers", "0"], "--workers 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
def test_errors_name_the_flag(place, name):
    words, message = FLAGS[name]
    np.save(place / "rows.npy", np.random.default_rng(0).normal(size=(40, 2)))
    with (place / "own.py").open("a") as file:
        file.write("\ndef line():\n    m = nn.Sequential()\n    m.weight = nn.Linear(2, 1)\n    return m\n")
    done = run(place, *words)
    assert done.returncode == 2, (done.returncode, done.stderr[-1500:])
    assert re.search(message, done.stderr.strip().splitlines()[-1].replace(".", "")), done.stderr


@pytest.mark.parametrize("suffix", [".pt", ".pt2", ".safetensors"])
def test_a_disk_that_fills_up_while_a_model_is_written(place, suffix):
    np.save(place / "rows.npy", np.random.default_rng(0).normal(size=(40, 2)))
    with (place / "own.py").open("a") as file:
        file.write("\ndef line():\n    return nn.Linear(2, 1)\n")
    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))}
    done = run(place, "repair", "own:line", "--data", "rows.npy", "--out", f"fixed{suffix}", **limit)
    assert done.returncode == 2, (done.returncode, done.stderr[-1500:])
    assert "bug" not in done.stderr and done.stderr.splitlines()[-1].startswith("error: ")


def test_unknown_says_that_it_exits_zero(place):
    with (place / "own.py").open("a") as file:
        file.write(
            "\nclass Odd(nn.Module):\n    def forward(self, x):\n"
            "        return torch.special.bessel_j0(x).cumprod(-1)\n"
        )
    done = run(place, "audit", "own:Odd", "--input", "1x2")
    assert done.returncode == 0 and "--fail-on unknown" in done.stderr
    done = run(place, "audit", "own:Odd", "--input", "1x2", "--fail-on", "unknown")
    assert done.returncode == 1 and "exit code" not in done.stderr


def test_random_weights_are_named_as_such(place):
    """A certificate of weights that nobody has any more can't be checked: both commands say why."""
    done = run(place, "certify", "own:good", "--input", "1x2", "--time", "1", "--out", "cert.json")
    assert done.returncode == 0 and "random weights each time" in done.stderr
    done = run(place, "verify", "cert.json", "own:good")
    assert done.returncode == 1 and "random weights each time" in done.stdout and "--weights" in done.stdout
    done = run(place, "certify", "good.pt2", "--time", "1", "--out", "file.json")
    assert "random" not in done.stderr
    assert "  farfield verify file.json good.pt2" in done.stdout
    done = run(place, "verify", "cert.json", "good.pt2")
    assert done.returncode == 1 and "random" not in done.stdout


def test_the_suggested_command_works(place):
    np.save(place / "rows.npy", np.random.default_rng(0).normal(size=(40, 2)))
    with (place / "own.py").open("a") as file:
        file.write(
            "\ndef net(width=3):\n    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 1))\n"
        )
    torch.save(
        nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 1)).state_dict(), place / "my weights.pt"
    )
    chosen = ("--weights", "my weights.pt", "--arg", "width=5", "--data", "rows.npy")
    done = run(place, "audit", "own:net", *chosen)
    assert done.returncode == 1 and "At 10 standard deviations" in " ".join(done.stdout.split()), done.stderr
    (command,) = (line.strip() for line in done.stdout.splitlines() if "farfield repair" in line)
    done = run(place, *shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr
    (command,) = (line for line in done.stdout.splitlines() if "farfield certify" in line)
    assert (place / shlex.split(command)[3]).is_file()
