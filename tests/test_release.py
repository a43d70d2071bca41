"""What a release says of itself is the same in every file."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import farfield

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = PROJECT["urls"]["Source"]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def parsed(name):
    return yaml.safe_load(text(name))


def floor(package):
    return next(r.partition(">=")[2] for r in PROJECT["dependencies"] if r.startswith(f"{package}>="))


def test_one_version():
    version = PROJECT["version"]
    assert farfield.__version__ == version
    assert parsed("CITATION.cff")["version"] == version
    assert parsed("conda/recipe.yaml")["context"]["version"] == version
    assert f"\n## {version}\n" in text("CHANGELOG.md") or "\n## Unreleased\n" in text("CHANGELOG.md")


def test_every_name_of_the_package_is_in_its_table():
    assert set(farfield.__all__) <= set(re.findall(r"``farfield\.(\w+)``", text("docs/api/farfield.rst")))


def test_one_address():
    """Whoever moves the project changes pyproject.toml and finds the other places here."""
    owner = SOURCE.removeprefix("https://github.com/")
    pattern = re.compile(
        r"github\.com/([\w-]+/farfield)\b|([\w-]+)\.github\.io/farfield|uses: ([\w-]+/farfield)@"
    )
    found = 0
    files = (
        "README.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "pyproject.toml", "conda/recipe.yaml", "docs/audit.md",
        ".github/ISSUE_TEMPLATE/config.yml",
    )  # fmt: skip
    for name in files:
        for match in pattern.finditer(text(name)):
            found += 1
            given = match[1] or match[3] or f"{match[2]}/farfield"
            assert given == owner, (name, match[0])
    assert found > 8


def test_the_workflow_tests_what_is_claimed():
    jobs = parsed(".github/workflows/tests.yml")["jobs"]
    claimed = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"
    installs = [step.get("run", "") for step in jobs["tests"]["steps"]]
    assert any(f"torch=={floor('torch')}.*" in run for run in installs)
    assert f"| torch | {floor('torch')} |" in text("docs/stability.md")
    assert f"torch {floor('torch')} or newer" in text("README.md")


def test_the_recipe_asks_for_what_the_project_asks_for():
    asked = dict(line.split(" >=") for line in parsed("conda/recipe.yaml")["requirements"]["run"][1:])
    ours = dict(r.split(">=") for r in PROJECT["dependencies"])
    ours["pytorch"] = ours.pop("torch")
    assert asked == ours


def test_all_has_every_extra_that_a_user_may_want():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.removeprefix("farfield[").removesuffix("]").split(","))
    assert named == set(extras) - {"all", "dev", "docs", "vision"}


def test_only_the_release_may_sign():
    release = parsed(".github/workflows/release.yml")
    assert release["permissions"] == {"contents": "read"}
    assert release["jobs"]["publish"]["permissions"]["id-token"] == "write"
    assert "password" not in text(".github/workflows/release.yml")


def test_every_workflow_and_template_can_be_read():
    files = sorted((ROOT / ".github").rglob("*.yml"))
    assert len(files) >= 8
    for file in files:
        assert parsed(file.relative_to(ROOT).as_posix())


@pytest.mark.parametrize("hook", parsed(".pre-commit-hooks.yaml"), ids=lambda hook: hook["id"])
def test_a_hook_is_a_command(hook):
    import blocks

    program, command = hook["entry"].split()
    assert program == "farfield"
    code, said = blocks.run_command(f"farfield {command} --help")
    assert code == 0 and "Usage" in said


MODELS = """
from torch import nn

def stable():
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))

def plain():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
"""


@pytest.mark.parametrize(("target", "code"), [("stable", 0), ("plain", 1)])
def test_the_action_audits(target, code, tmp_path):
    """Its own script, run as GitHub runs it."""
    (tmp_path / "nets.py").write_text(MODELS, encoding="utf-8")
    program = tmp_path / "farfield"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m farfield "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    action = parsed("action.yml")
    (audit,) = (step for step in action["runs"]["steps"] if step["name"] == "audit")
    inputs = {name: given["default"] for name, given in action["inputs"].items() if "default" in given}
    inputs |= {"target": f"nets.py:{target}", "inputs": "1x8", "html": "report.html", "arguments": "--json"}
    variables = {
        name: inputs[re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", value)[1]]
        for name, value in audit["env"].items()
    }
    environment = os.environ | variables
    environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(Path(farfield.__file__).parents[1])
    environment.pop("FARFIELD_CHECK_SHAPES", None)
    script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", audit["run"]]
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "farfield.sarif").exists() and (tmp_path / "report.html").exists()
