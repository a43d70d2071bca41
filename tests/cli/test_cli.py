"""The command line as a person or a script meets it: data on stdout, talk on stderr, exit codes."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import shell

ROOT = Path(__file__).resolve().parents[2]


def farfield(*words, cwd=None):
    return shell.run(cwd or ROOT, *words)


def test_activations_json_is_data_and_nothing_else():
    done = farfield("activations", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["activations"]}
    assert abs(rows["relu"]["beta"] - 1.2665288965) < 1e-9
    assert abs(rows["relu"]["offset"] - 0.3989422804) < 1e-9
    assert rows["exp"]["lipschitz"] == "inf"  # JSON has no infinity; it is said, not dropped
    right = {"kind": "linear", "slope": 1.0, "offset": 0.0, "remainder": "flat"}
    assert rows["gelu"]["growth"]["right"] == right
    assert len(rows) >= 30


def test_activations_gain_changes_what_it_should():
    rows = {
        r["name"]: r
        for r in json.loads(farfield("activations", "--json", "--gain", "2").stdout)["activations"]
    }
    assert abs(rows["relu"]["beta"] - 1.2665288965) < 1e-9
    assert rows["tanh"]["beta"] > 1.15


def test_activations_table_and_plot(tmp_path):
    done = farfield("activations", "--plot", str(tmp_path / "beta.png"))
    assert done.returncode == 0, done.stderr
    assert "β" in done.stdout and "relu" in done.stdout
    assert (tmp_path / "beta.png").read_bytes()[:4] == b"\x89PNG"
    assert "wrote" in done.stderr and "wrote" not in done.stdout


def test_a_refusal_exits_2_with_a_sentence_and_no_traceback():
    done = farfield("activations", "--gain", "0")
    assert done.returncode == 2
    assert "non-zero" in done.stderr and "Traceback" not in done.stderr


def test_unknown_command_and_option_exit_2():
    assert farfield("nonsense").returncode == 2
    assert farfield("activations", "--nonsense").returncode == 2


def test_env_names_versions_and_missing_extras():
    facts = json.loads(farfield("env", "--json").stdout)
    assert facts["torch"] and facts["farfield"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {
        name: {re.split("[<>=]", need)[0] for need in needs}
        for name, needs in project["optional-dependencies"].items()
        if name not in ("all", "dev", "docs")
    }
    assert {name: set(packages) for name, packages in facts["extras"].items()} == extras
    text = farfield("env").stdout
    for name, packages in facts["extras"].items():
        # What it adds, in words; and how to get it, quoted for shells that take brackets for a pattern.
        assert re.search(rf"^\[{name}\] +\S+.* \S+", text, re.MULTILINE)
        assert (f"pip install 'farfield[{name}]'" in text) == (not all(packages.values()))


def test_descriptions_are_whole():
    for words in ((), ("data",), ("lnnet",)):
        commands = farfield(*words, "--help").stdout.partition("Commands:")[2]
        assert commands.strip() and "..." not in commands and "…" not in commands
        assert all(
            entry.rstrip().endswith(".") for entry in re.split(r"\n  (?=\S)", commands) if entry.strip()
        )


def test_version():
    import farfield as ff

    assert farfield("--version").stdout.strip() == ff.__version__


def test_help_is_quick_and_lists_the_commands():
    done = farfield("--help")
    assert done.returncode == 0
    for word in ("activations", "env", "reproduce"):
        assert word in done.stdout
    code = (
        "import sys; sys.argv = ['farfield', '--help']\n"
        "from farfield.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_reproduce_lists_without_torch():
    done = farfield("reproduce")
    assert done.returncode == 0
    assert "p2.fig3" in done.stdout and "p2.tableC1" in done.stdout
    assert "P2 Figure 4: layer centering" in done.stdout and "P2 Figure B.1" in done.stdout


def test_reproduce_refuses_an_old_name_with_the_new_one(tmp_path):
    done = farfield("reproduce", "p2.order", "--quick", "--out", "r", cwd=tmp_path)
    assert (
        done.returncode == 2 and "farfield reproduce p2.fig8" in done.stderr and not (tmp_path / "r").exists()
    )


def test_reproduce_without_matplotlib_keeps_the_result(tmp_path):
    block = "import sys; sys.modules['matplotlib'] = None\n"
    code = block + "sys.argv = ['farfield', 'reproduce', 'p2.figC1', '--quick', '--out', 'r']\n"
    code += "from farfield.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    folder = tmp_path / "r" / "quick" / "p2"
    assert done.returncode == 0 and "farfield[plot]" in done.stderr and "holds: tanh" in done.stdout
    assert json.loads((folder / "figC1.json").read_text(encoding="utf-8"))["verdicts"]
    assert not (folder / "figC1.png").exists()
    again = farfield("reproduce", "p2.figC1", "--quick", "--out", "r", cwd=tmp_path)
    assert again.returncode == 0 and (folder / "figC1.png").exists()


def test_reproduce_runs_stores_and_resumes(tmp_path):
    first = farfield("reproduce", "p2.table2", "p2.figC1", "--quick", "--out", "r", "--json", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    records = json.loads(first.stdout)
    assert [r["name"] for r in records] == ["p2.table2", "p2.figC1"]
    assert all(v["holds"] for r in records for v in r["verdicts"])
    stored = tmp_path / "r" / "quick" / "p2" / "figC1.json"
    stamp = stored.stat().st_mtime_ns
    assert stored.with_suffix(".png").exists() and stored.with_suffix(".svg").exists()
    again = farfield("reproduce", "p2.figC1", "--quick", "--out", "r", cwd=tmp_path)
    assert again.returncode == 0 and stored.stat().st_mtime_ns == stamp
    forced = farfield("reproduce", "p2.figC1", "--quick", "--out", "r", "--force", cwd=tmp_path)
    assert forced.returncode == 0 and stored.stat().st_mtime_ns > stamp


def test_reproduce_unknown_name_fails_before_anything_runs(tmp_path):
    done = farfield("reproduce", "p2.table2", "p2.fig33", "--out", "r", cwd=tmp_path)
    assert done.returncode == 2
    assert "p2.fig3" in done.stderr and not (tmp_path / "r").exists()


def test_reproduce_takes_other_settings(tmp_path):
    done = farfield("reproduce", "p2.table2", "--set", "tolerance=1e-30", "--out", "r", cwd=tmp_path)
    stored = json.loads((tmp_path / "r" / "p2" / "table2.json").read_text(encoding="utf-8"))
    assert done.returncode == 1 and stored["provenance"]["settings"] == {"tolerance": 1e-30}
    wrong = farfield("reproduce", "p2.table2", "--set", "tolerence=1", "--out", "s", cwd=tmp_path)
    assert wrong.returncode == 2 and "tolerance" in wrong.stderr and not (tmp_path / "s").exists()


def test_an_internal_error_exits_3():
    code = (
        "import sys, farfield.cli._app as a\ndef boom(): raise RuntimeError('boom')\na.app = boom\na.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3 and "bug in farfield" in done.stderr and "boom" in done.stderr


@pytest.mark.parametrize("command", ["activations", "env", "reproduce"])
def test_every_command_has_help(command):
    done = farfield(command, "--help")
    assert done.returncode == 0 and len(done.stdout) > 150


def test_reproduce_counts_seeds(tmp_path):
    done = farfield(
        "reproduce", "p2.table2", "--quick", "--seeds", "2", "--seed", "5", "--out", "r", cwd=tmp_path
    )
    assert "2 of 2: p2.table2: " in done.stdout and done.returncode == 0
    assert (tmp_path / "r" / "quick" / "seed6" / "p2" / "table2.json").exists()
    assert json.loads((tmp_path / "r" / "quick" / "seeds.json").read_text())["provenance"]["settings"][
        "seeds"
    ] == [
        5,
        6,
    ]
    both = farfield("reproduce", "p2.table2", "--seeds", "2", "--set", "tolerance=1", cwd=tmp_path)
    assert both.returncode == 2 and "do not go together" in both.stderr
