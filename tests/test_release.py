"""What a release says of itself is the same in every file; old names go when they are due."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

import farfield
from farfield._deprecation import FarfieldDeprecationWarning, deprecated, renamed_argument

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


# How names go ------------------------------------------------------------------------------------------------------


@deprecated(since="0.3", removed_in="0.5", instead="new(x)")
def old(x):
    """Say x."""
    return x


@renamed_argument("eps", "norm_eps", since="0.3", removed_in="0.5")
def layer(width, norm_eps=1e-5):
    return width, norm_eps


def test_an_old_function_works_and_says_what_to_use():
    with pytest.warns(
        FarfieldDeprecationWarning, match=r"old is deprecated since farfield 0\.3.*Use new\(x\)"
    ) as seen:
        assert old(3) == 3
    assert seen[0].filename == __file__  # the caller's line, not the helper's
    assert old.__doc__ == "Say x." and old.__name__ == "old"


def test_it_is_shown_by_default():
    code = (
        "from farfield._deprecation import deprecated\n"
        "@deprecated(since='0.3', removed_in='0.5', instead='g()')\ndef f(): pass\n"
        "import types; m = types.ModuleType('m'); exec('def call(f): f()', m.__dict__); m.call(f)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(farfield.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "FarfieldDeprecationWarning: f is deprecated" in done.stderr


def test_an_argument_goes_by_both_names_and_not_at_once():
    with pytest.warns(FarfieldDeprecationWarning, match=r"layer\(eps=\).*Use layer\(norm_eps=\)"):
        assert layer(8, eps=0.1) == (8, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert layer(8, norm_eps=0.2) == (8, 0.2)
        assert layer(8, 0.3) == (8, 0.3)
    for given in ({"norm_eps": 0.2}, {}):
        with (
            pytest.warns(FarfieldDeprecationWarning),
            pytest.raises(TypeError, match="both 'eps' and 'norm_eps'"),
        ):
            layer(8, *(() if given else (0.3,)), eps=0.1, **given)


def test_a_rename_to_an_argument_that_is_not_there_is_refused_at_once():
    with pytest.raises(TypeError, match="must have the argument 'b'"):
        renamed_argument("a", "b", since="0.3", removed_in="0.5")(lambda c: c)


def overdue(source, version):
    """Lines that mark something as removed in this version or an earlier one."""
    now = tuple(map(int, version.split(".")[:2]))
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.keyword)
        and node.arg == "removed_in"
        and isinstance(node.value, ast.Constant)
        and tuple(map(int, node.value.value.split(".")[:2])) <= now
    ]


def test_what_should_be_gone_is_gone():
    mark = '@deprecated(since="0.3", removed_in="0.5", instead="g()")\ndef f(): pass\n'
    assert overdue(mark, "0.5.0") == [1] and overdue(mark, "0.10.1") == [1] and not overdue(mark, "0.4.9")
    for path in Path(farfield.__file__).parent.rglob("*.py"):
        if path.name != "_deprecation.py":
            assert not overdue(path.read_text(encoding="utf-8"), farfield.__version__), path
