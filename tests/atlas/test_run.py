"""A run over a small library: rows, files, going on, limits."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from farfield.atlas import AtlasRow, architectures, atlas, read_atlas
from farfield.atlas._libraries import LIBRARIES, installed_libraries
from farfield.cli._app import app
from farfield.errors import InvalidValueError, UnknownNameError

LIBRARY = "stable_baselines3"
pytest.importorskip(LIBRARY)


def wanted(architecture):
    return architecture.name in ("td3_actor", "td3_critic")


def test_every_library_here_lists_each_architecture_once():
    for library in installed_libraries():
        names = [a.name for a in architectures(library)]
        assert names, library
        assert len(set(names)) == len(names)
        assert all(a.library == library and a.family and a.task for a in architectures(library))


def test_a_run_gives_verdicts_and_goes_on_where_it_was(tmp_path):
    steps = []
    first = atlas(
        tmp_path, libraries=[LIBRARY], choose=wanted, limit=1, progress=lambda d, n: steps.append((d, n))
    )
    assert len(first.rows) == 1
    assert steps[-1] == (1, 1)
    torn = (tmp_path / "atlas.jsonl").read_text(encoding="utf-8") + '{"library": "stable_base'
    (tmp_path / "atlas.jsonl").write_text(torn + "\n", encoding="utf-8")  # a line that was cut off
    found = atlas(tmp_path, libraries=[LIBRARY], choose=wanted, progress=lambda d, n: steps.append((d, n)))
    assert steps[-1] == (1, 1)  # one was done before
    rows = {row.name: row for row in found.rows}
    assert rows["td3_actor"].verdict == "BOUNDED"
    assert rows["td3_critic"].verdict == "UNBOUNDED"
    assert all(row.checked == "holds" and row.captured for row in found.rows)
    assert [i["name"] for i in json.loads(rows["td3_critic"].inputs)] == ["obs", "actions"]
    assert "→" in rows["td3_critic"].path
    assert found.coverage == 1.0
    assert found.causes == {}
    assert read_atlas(tmp_path).rows == found.rows
    summary = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert summary["counts"] == {"BOUNDED": 1, "UNBOUNDED": 1, "UNKNOWN": 0, "ERROR": 0}
    assert "2 architectures: 1 BOUNDED, 1 UNBOUNDED" in str(found)


def test_one_that_takes_too_long_is_a_row(tmp_path):
    found = atlas(tmp_path, libraries=[LIBRARY], choose=wanted, limit=1, time_limit=1e-3)
    (row,) = found.rows
    assert row.error == "TimeLimit"
    assert row.verdict is None
    assert found.coverage is None
    assert sum(found.causes.values()) == 1


def test_wrong_settings_are_refused(tmp_path):
    with pytest.raises(UnknownNameError):
        atlas(tmp_path, libraries=["tensorflow"])
    with pytest.raises(InvalidValueError):
        atlas(tmp_path, time_limit=0.0)


def test_the_command_lists_and_refuses(tmp_path):
    run = CliRunner().invoke(app, ["atlas", "--list", "--library", LIBRARY, "--name", "td3"])
    assert run.exit_code == 0
    assert [line.split("\t")[1] for line in run.stdout.splitlines()] == ["td3_actor", "td3_critic"]
    assert isinstance(CliRunner().invoke(app, ["atlas"]).exception, InvalidValueError)
    wrong = CliRunner().invoke(app, ["atlas", "--out", str(tmp_path / "x"), "--again", "maybe"])
    assert isinstance(wrong.exception, UnknownNameError)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"verdict": "BOUNDED"}, None),
        (
            {"stage": "build", "error": "NotBuiltError", "message": "ValueError: no 'size' here"},
            "not built: its small configuration is refused",
        ),
        ({"stage": "audit", "error": "TimeLimit"}, "TimeLimit while it was audited"),
        (
            {
                "verdict": "UNKNOWN",
                "capture": "modules",
                "message": "torch.export failed: GuardOnDataDependentSymNode: u0",
            },
            "not captured: what it computes depends on values",
        ),
        (
            {"verdict": "UNKNOWN", "capture": "export", "reason": "no rule for sort (at sort_1)"},
            "unknown: no rule for sort",
        ),
    ],
)
def test_causes(fields, cause):
    assert AtlasRow("a", "b", "c", "d", **fields).cause == cause


def test_every_library_has_its_file():
    assert all(file.startswith("_") for _, file in LIBRARIES.values())
