"""Checkpoints: whole or absent, refused where they do not belong, never trusted blindly."""

import io
import json
import os
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import torch

from engine_tasks import Logged, Product, features, identical
from farfield.engine import Checkpoint, FolderInUseError, Tile, fingerprint, local, tiles
from farfield.errors import InvalidValueError

RESULTS = [
    torch.randn(3, 4, dtype=torch.float64),
    torch.tensor([0.0, -0.0, float("nan"), float("inf")]),
    torch.arange(3, dtype=torch.int8),
    torch.ones(2, dtype=torch.bfloat16),
    torch.empty(0, 3),
    (torch.ones(2), {"a": [1, 2.5, None, "x", True, b"y"]}),
    None,
    7,
]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return identical(a, b)
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "deep" / "folder", fingerprint("test"))


@pytest.mark.parametrize("result", RESULTS, ids=range(len(RESULTS)))
def test_what_is_saved_is_loaded_bit_for_bit(checkpoint, result):
    absent = object()
    assert checkpoint.load("item", absent) is absent
    checkpoint.save("item", result)
    assert same(Checkpoint(checkpoint.folder, checkpoint.fingerprint).load("item", absent), result)
    assert checkpoint.load("another item", absent) is absent
    checkpoint.remove("item")
    checkpoint.remove("item")
    assert checkpoint.load("item", absent) is absent


def test_a_view_is_stored_without_the_rest_of_its_storage(checkpoint):
    whole = torch.randn(1000, 1000)
    checkpoint.save(1, whole[:2, :2])
    (path,) = checkpoint.folder.glob("*.result")
    assert path.stat().st_size < 10_000
    assert identical(checkpoint.load(1), whole[:2, :2])


def test_clear_and_pickle(checkpoint):
    checkpoint.save(1, 1)
    copy = pickle.loads(pickle.dumps(checkpoint))
    assert copy == checkpoint and copy.load(1) == 1
    copy.clear()
    assert checkpoint.load(1) is None
    Checkpoint(checkpoint.folder, checkpoint.fingerprint)


def test_another_fingerprint_is_refused(checkpoint):
    checkpoint.save(1, 1)
    with pytest.raises(
        InvalidValueError, match=r"belong to another computation.*Give another folder, delete"
    ):
        Checkpoint(checkpoint.folder, fingerprint("another"))
    (checkpoint.folder / "checkpoint.json").write_text('{"form')
    with pytest.raises(InvalidValueError, match="cannot be read"):
        Checkpoint(checkpoint.folder, checkpoint.fingerprint)


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InvalidValueError, match=r"thesis\.tex"):
        Checkpoint(tmp_path, "f")
    with pytest.raises(InvalidValueError, match="is a file"):
        Checkpoint(tmp_path / "thesis.tex", "f")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@dataclass(frozen=True)
class Unreadable:
    value: int


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (Unreadable(1), "got Unreadable"),
        ([Unreadable(1)], "got Unreadable"),
        (1j, "got complex"),
        (torch.nn.Parameter(torch.ones(1)), "got Parameter"),
        (torch.ones(1, requires_grad=True), "carries a gradient"),
    ],
    ids=["dataclass", "inside a list", "complex", "parameter", "gradient"],
)
def test_what_could_not_be_read_back_is_refused(checkpoint, result, message):
    with pytest.raises(InvalidValueError, match=message):
        checkpoint.save(1, result)
    assert not list(checkpoint.folder.glob("*.result"))


def flip(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGE = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[:-1],
    "half": lambda content: content[: len(content) // 2],
    "extended": lambda content: content + b"\0",
    "one bit of an entry": lambda content: flip(content, len(content) // 2),
    "one bit of the checksum": lambda content: flip(content, 20),
    "one bit of the head": lambda content: flip(content, 0),
    "no file of ours": lambda content: b"something else entirely",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_computed_again(checkpoint, damage):
    task, cover = Product(features(6)), tiles(6, height=3)
    expected = local().fill(torch.empty(6, 6, dtype=torch.float64), task, cover, checkpoint=checkpoint)
    path = checkpoint._path(cover[2])
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    logged = Logged(task)
    again = local().fill(torch.empty(6, 6, dtype=torch.float64), logged, cover, checkpoint=checkpoint)
    assert logged.calls == [cover[2]]
    assert identical(again, expected)
    assert identical(checkpoint.load(cover[2]), task(cover[2]))


def test_an_entry_in_the_wrong_place_is_not_trusted(checkpoint, tmp_path):
    checkpoint.save(1, "one")
    checkpoint._path(2).write_bytes(checkpoint._path(1).read_bytes())
    assert checkpoint.load(2) is None
    other = Checkpoint(tmp_path / "other", fingerprint("other"))
    other._path(1).write_bytes(checkpoint._path(1).read_bytes())
    assert other.load(1) is None


def test_code_in_an_entry_is_not_run(checkpoint):
    """Even where the checksum is right: reading is restricted to plain values."""

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(checkpoint.folder / "ran"),)

    buffer = io.BytesIO()
    torch.save(Evil(), buffer)
    payload = buffer.getbuffer()
    checkpoint._write(checkpoint._path(1), b"farfield-result/1\n", checkpoint._checksum(1, payload), payload)
    with pytest.raises(pickle.UnpicklingError):
        checkpoint.load(1)
    assert not (checkpoint.folder / "ran").exists()


def test_parts_of_a_killed_run_are_swept(checkpoint):
    (checkpoint.folder / "x.result.123.part").write_bytes(b"half")
    Checkpoint(checkpoint.folder, checkpoint.fingerprint)
    assert {p.name for p in checkpoint.folder.iterdir()} == {"checkpoint.json"}
    assert json.loads((checkpoint.folder / "checkpoint.json").read_text())["format"] == 1


def test_a_failed_write_leaves_nothing(checkpoint, monkeypatch):
    checkpoint.save(1, "before")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="no space left"):
        checkpoint.save(1, "after")
    assert checkpoint.load(1) == "before"
    assert not list(checkpoint.folder.glob("*.part"))


def test_a_full_disk_is_not_the_tasks_fault(checkpoint, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="no space left"):
        list(local().map(abs, [1], checkpoint=checkpoint))


def test_tiles_are_keys(checkpoint):
    checkpoint.save(Tile((0, 1), (0, 2)), 1)
    assert checkpoint.load(Tile((0, 1), (0, 2))) == 1
    assert checkpoint.load(Tile((0, 2), (0, 1))) is None


# ------------------------------------------------------------------ one run at a time

HOLDER = """
import sys
from pathlib import Path
from farfield.engine import Checkpoint, fingerprint, local

def task(item):
    Path(sys.argv[2]).touch()
    sys.stdin.read()
    return item

list(local().map(task, [1], checkpoint=Checkpoint(sys.argv[1], fingerprint("held"))))
"""


def test_a_second_process_is_refused_and_a_killed_one_lets_go(tmp_path):
    folder, mark = tmp_path / "checkpoint", tmp_path / "mark"
    words = [sys.executable, "-c", HOLDER, str(folder), str(mark)]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as holder:
        while not mark.exists():
            assert holder.poll() is None
            time.sleep(0.02)
        checkpoint = Checkpoint(folder, fingerprint("held"))
        for run in (
            lambda: list(local().map(abs, [1], checkpoint=checkpoint)),
            lambda: local().reduce(abs, [1], max, checkpoint=checkpoint),
            lambda: local().stream([1], abs, max, checkpoint=checkpoint),
        ):
            with pytest.raises(FolderInUseError, match=rf"process {holder.pid} on .*folder of its own"):
                run()
        holder.kill()
    assert list(local().map(abs, [1], checkpoint=checkpoint)) == [(1, 1)]
