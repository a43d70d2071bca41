"""A census: one verdict for every architecture, the same table after a kill, and errors that are rows."""

from __future__ import annotations

import hashlib
import json
import struct

import pytest
import torch
from torch import nn

from farfield.audit import census
from farfield.audit._census import _Asker
from farfield.audit._hollow import build_hollow, is_hollow
from farfield.audit._structural import check_header, structural_verdict
from farfield.errors import InvalidValueError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

MODELS = """
from torch import nn

def normed(hidden_size, eps=1e-5):
    return nn.Sequential(nn.Linear(4, hidden_size), nn.LayerNorm(hidden_size, eps=eps), nn.Linear(hidden_size, 1))

def plain(hidden_size):
    return nn.Sequential(nn.Linear(4, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 1))

def two_faced(hidden_size):
    "A norm only where it is wide: what a key does not tell."
    return nn.Sequential(nn.Linear(4, hidden_size), nn.LayerNorm(hidden_size) if hidden_size > 20 else nn.ReLU())
"""


def header(hidden):
    shapes = {"0.weight": [hidden, 4], "0.bias": [hidden], "1.weight": [hidden], "1.bias": [hidden]}
    shapes |= {"2.weight": [1, hidden], "2.bias": [1]}
    return json.dumps({k: {"dtype": "F32", "shape": s, "data_offsets": [0, 0]} for k, s in shapes.items()})


def row(path, builder, header=None, **arguments):
    return {
        "path": path,
        "builder": f"census_models:{builder}",
        "arguments": json.dumps(arguments),
        "inputs": "1x4",
        "header": header,
    }


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "census_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(place, rows, size=10):
    names = ("path", "config", "header", "builder", "arguments", "inputs")
    schema = pyarrow.schema([(n, pyarrow.string()) for n in names])
    parquet.write_table(
        pyarrow.Table.from_pylist(rows, schema=schema), place / "registry.parquet", row_group_size=size
    )
    return place / "registry.parquet"


def table(folder):
    return [
        r
        for file in sorted((folder / "audits").glob("part-*.parquet"))
        for r in parquet.read_table(file).to_pylist()
    ]


def digests(folder):
    return [
        hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted((folder / "audits").glob("part-*.parquet"))
    ]


def test_one_verdict_for_every_architecture_and_errors_are_rows(place, monkeypatch):
    monkeypatch.setattr("farfield.audit._census.PIECE", 10)
    rows = [row(f"normed/{h}", "normed", header(h), hidden_size=h) for h in range(8, 28)]
    rows += [row("narrow", "normed", header(1), hidden_size=1), row("plain", "plain", hidden_size=9)]
    rows += [row("cut", "normed", header(8)[:40], hidden_size=8)]
    rows += [{"path": "nothing", "config": "{}"}, {"path": "gone.safetensors"}]
    rows += [row("other", "normed", json.dumps({"x": {"shape": [3]}}), hidden_size=8)]
    found = census(write(place, rows), out=place / "out", workers=1, spot_check=4)
    by = {r["path"]: r for r in table(place / "out")}
    assert list(by) == [r["path"] for r in rows]
    assert {by[f"normed/{h}"]["verdict"] for h in range(8, 28)} == {"BOUNDED"}
    assert by["normed/8"]["reason"] == "for whatever weights: cut by 1"
    assert by["normed/27"]["parameters"] == 27 * 4 + 27 * 4 + 1
    assert by["narrow"]["verdict"] == "BOUNDED" and by["narrow"]["key"] != by["normed/8"]["key"]
    assert by["plain"]["verdict"] == "UNBOUNDED" and by["plain"]["reason"].startswith("with random weights")
    assert by["cut"]["error"] == "CheckpointError" and by["cut"]["verdict"] is None
    assert by["nothing"]["verdict"] is None and by["nothing"]["error"] == "InvalidValueError"
    assert "not in the Sequential" in by["other"]["message"]
    assert found.counts == {"BOUNDED": 21, "UNBOUNDED": 1, "UNKNOWN": 0, "ERROR": 4}
    assert found.models == len(rows) and found.architectures[0]["models"] == 20
    assert found.spot_checks and all(c["verdict"] == c["own"] for c in found.spot_checks)


def test_where_sizes_matter_the_verdict_is_withdrawn(place):
    rows = [row(f"m/{h}", "two_faced", hidden_size=h) for h in range(10, 30)]
    found = census(write(place, rows), out=place / "out", workers=1, spot_check=2)
    assert any(c["verdict"] != c["own"] for c in found.spot_checks)
    assert found.counts["UNKNOWN"] == 20
    assert found.architectures[0]["reason"].startswith("sizes matter: ")


def test_a_run_that_was_stopped_goes_on_and_gives_the_same_table(place, monkeypatch):
    monkeypatch.setattr("farfield.audit._census.PIECE", 10)
    rows = [row(f"m/{h}", ("normed", "plain")[h % 2], hidden_size=h) for h in range(8, 48)]
    registry = write(place, rows)
    whole = census(registry, out=place / "whole", workers=1, spot_check=0)
    ask, asked = _Asker.__call__, []

    def dies(self, job):
        asked.append(job.task)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return ask(self, job)

    monkeypatch.setattr(_Asker, "__call__", dies)
    with pytest.raises(KeyboardInterrupt):
        census(registry, out=place / "cut", workers=1, spot_check=0)
    monkeypatch.setattr(_Asker, "__call__", ask)
    again = census(registry, out=place / "cut", workers=1, spot_check=0)
    assert again.stages["keys"]["reused"] == 2 and again.stages["keys"]["jobs"] == 4
    assert digests(place / "cut") == digests(place / "whole")
    assert again.counts == whole.counts
    (place / "cut" / "audits" / "part-000001.parquet").unlink()
    once_more = census(registry, out=place / "cut", workers=1, spot_check=0)
    assert once_more.stages["architectures"]["reused"] == 2 and once_more.stages["rows"]["reused"] == 3
    assert digests(place / "cut") == digests(place / "whole")


def test_folders_of_files_are_read_by_their_headers(place):
    folder = place / "models" / "one"
    folder.mkdir(parents=True)
    text = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text.encode())
    (folder / "config.json").write_text(
        json.dumps({"model_type": "no such kind", "architectures": ["Nothing"]})
    )
    found = census(place / "models", out=place / "out", workers=1)
    (only,) = table(place / "out")
    assert (
        only["path"] == "one/model.safetensors"
        and only["architecture"] == "Nothing"
        and only["parameters"] == 2
    )
    assert found.counts["ERROR"] == 1
    assert "does not know" in only["message"] or "transformers" in only["message"]


def test_options_that_are_wrong(place):
    with pytest.raises(InvalidValueError, match="spot_check"):
        census(write(place, [row("a", "plain", hidden_size=3)]), out=place / "out", spot_check=-1)


def test_a_hollow_model_takes_no_memory_and_keeps_its_ties():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 2**20), nn.Linear(8, 2**20)
            self.down.weight = self.up.weight

    model = build_hollow(Tied)
    assert is_hollow(model) and model.up.weight is model.down.weight
    assert model.up.weight.untyped_storage().nbytes() == 4
    check_header(model, {"up.weight": (2**20, 8), "up.bias": (2**20,), "down.bias": (2**20,)})


def test_code_that_needs_numbers_to_build_is_built_with_them():
    class Needs(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = float(torch.linspace(0, 1, 3)[1])
            self.layer = nn.Linear(2, 2)

    assert not is_hollow(build_hollow(Needs))


def test_large_models_are_decided_without_drawing_weights(monkeypatch):
    monkeypatch.setattr("farfield.audit._structural.LARGEST_DRAWN", 10)

    def make():
        return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))

    def refuse():
        raise AssertionError("weights were drawn")

    found = structural_verdict(build_hollow(make), (torch.zeros(2, 4),), refuse)
    assert found["verdict"] == "BOUNDED" and "not compared" in found["note"]
    plain = build_hollow(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU()))
    found = structural_verdict(plain, (torch.zeros(2, 4),), refuse)
    assert (
        found["verdict"] == "UNKNOWN"
        and "may grow (LINEAR) along input → 0 → 1; no weights were drawn" in found["reason"]
    )
