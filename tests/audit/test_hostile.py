"""audit-all can't be held up: what is no file, what forks, what eats memory, what never ends; and very many rows."""

import gc
import hashlib
import json
import os
import socket
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from farfield.audit import ModelEntry, _all, audit_all
from farfield.audit._children import Children
from farfield.audit._sandbox import trouble
from farfield.errors import InvalidValueError
from waiting import until

BUILDERS = """
import os, sys, time
from torch import nn
import torch

def forks_and_dies():
    if os.fork() == 0:
        time.sleep(3600)  # holds the pipe of the replies open
        os._exit(0)
    os._exit(3)

def forks_and_hangs():
    for _ in range(3):
        if os.fork() == 0:
            time.sleep(3600)
    time.sleep(3600)

def stops():
    os.kill(os.getpid(), 19)

def eats():
    kept = [torch.ones(2**24) for _ in range(10**6)]
    return nn.Linear(4, 1)

def lies():
    for fd in range(3, 20):
        try:
            os.write(fd, b'{"done": "accepted"\\n')
        except OSError:
            pass
    return nn.Linear(4, 1)

def dies_once():
    mark = os.path.join(os.path.dirname(__file__), "MARK")
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), 9)
    return nn.Linear(4, 1)

def looks_around():
    import socket
    found = []
    for name, attempt in {
        "network": lambda: socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), timeout=5),
        "outside": lambda: open(os.path.join(os.path.dirname(__file__), "written"), "w"),
        "home": lambda: open(os.path.expanduser("~/.farfield-was-here"), "w"),
        "undo": lambda: _mount_again(),
    }.items():
        try:
            attempt()
            found.append(name)
        except OSError:
            pass
    open(os.path.join(os.environ["OUT"], "inside"), "w").close()
    raise ValueError(f"could do: {found}")

def _mount_again():
    import ctypes
    if ctypes.CDLL(None).mount(b"none", b"/", None, ctypes.c_ulong(32 | 4096), None) != 0:
        raise OSError("not permitted")

def hides():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    time.sleep(3600)

def prints():
    print("x" * 10**6)
    return nn.Linear(4, 1)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile_models.py").write_text(BUILDERS)
    model = nn.Linear(4, 1)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    torch.export.save(torch.export.export(model.eval(), (torch.zeros(1, 4),)), tmp_path / "good.pt2")
    return tmp_path


def strange_files(folder: Path) -> dict[str, str]:
    """What is no regular file → the word of it."""
    os.mkfifo(folder / "pipe.pt2")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket.pt2"))
    (folder / "zero.pt2").symlink_to("/dev/zero")
    (folder / "terminal.pt2").symlink_to("/dev/tty")
    (folder / "linked.pt2").symlink_to("pipe.pt2")
    (folder / "folder.pt2").mkdir()
    (folder / "gone.pt2").symlink_to("nowhere")
    (folder / "loop.pt2").symlink_to("loop.pt2")
    return {
        "pipe.pt2": "named pipe", "socket.pt2": "socket", "zero.pt2": "a device",
        "terminal.pt2": "a device", "linked.pt2": "named pipe", "folder.pt2": "a folder",
        "gone.pt2": "No such file", "loop.pt2": "symbolic links",
    }  # fmt: skip


def test_what_is_no_file_is_a_row_and_is_not_opened(folder):
    wanted = strange_files(folder)
    table = audit_all(folder, out=folder / "out", workers=1, time_limit=60, builder="torch.nn:Linear")
    rows = {row.path: row for row in table.rows}
    assert rows["good.pt2"].verdict == "UNBOUNDED"
    for path, word in wanted.items():
        assert rows[path].stage == "read" and word in rows[path].message, rows[path]
        assert path in rows[path].message
    good = (folder / "good.pt2").read_bytes()
    assert (rows["good.pt2"].bytes, rows["good.pt2"].sha256) == (len(good), hashlib.sha256(good).hexdigest())


def entry(builder: str) -> ModelEntry:
    return ModelEntry("w.safetensors", ("1x4",), f"hostile_models:{builder}")


def alive(session: int) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(place.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("builder", "limit", "error"),
    [
        ("forks_and_dies", 500.0, "WorkerDied"),
        ("forks_and_hangs", 4.0, "TimeLimit"),
        ("stops", 4.0, "TimeLimit"),
    ],
)
def test_the_whole_group_is_ended(folder, builder, limit, error):
    """One that forks and dies is seen at once, not at a limit that is far away; and no process is left."""
    workers = Children()
    request = {
        "path": "w.safetensors", "inputs": ["1x4"], "builder": f"hostile_models:{builder}", "arguments": None,
        "file": str(folder / "w.safetensors"), "search": [str(folder)], "certify": None, "certificate": None,
        "details": None,
    }  # fmt: skip
    child = workers._take()
    session = child._worker
    row = child.ask(request, limit)
    assert row["error"] == error and row["seconds"] < 400, row
    child.end()
    until(lambda: alive(session) == [])


def test_memory_is_limited_and_lies_are_not_believed(folder):
    names = ("eats", "lies", "dies_once", "prints")
    table = audit_all(map(entry, names), workers=1, time_limit=300, memory_limit="2GB")
    rows = dict(zip(names, table.rows, strict=True))
    assert (rows["eats"].error, rows["eats"].stage) == ("MemoryError", "load"), rows["eats"]
    assert "limit" in rows["eats"].message
    assert rows["lies"].verdict is None and rows["lies"].error == "WorkerDied"
    assert rows["dies_once"].verdict == "UNBOUNDED", rows[
        "dies_once"
    ]  # killed by the system: tried once more
    assert rows["prints"].verdict == "UNBOUNDED"


@pytest.mark.skipif(trouble() is not None, reason=f"no sandbox here: {trouble()}")
def test_in_a_sandbox(folder, monkeypatch):
    out = folder / "out"
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PORT", str(server.getsockname()[1]))
        monkeypatch.setenv("OUT", str(out))
        options = {"out": out, "workers": 1, "time_limit": 60, "details": True}
        around, good = audit_all(
            [entry("looks_around"), ModelEntry("good.pt2")], sandbox=True, **options
        ).rows
        assert "could do: []" in around.message, around
        assert good.verdict == "UNBOUNDED" and (out / "details" / good.details).is_file()
        assert (out / "inside").exists() and not (folder / "written").exists()
        free = audit_all([entry("looks_around")], **options).rows[0]  # so that the test can fail
        assert "'network', 'outside'" in free.message, free
        assert (folder / "written").exists()
    Path("~/.farfield-was-here").expanduser().unlink(missing_ok=True)


@pytest.mark.skipif(trouble() is not None, reason=f"no sandbox here: {trouble()}")
def test_nothing_hides_in_a_sandbox(folder):
    """A process with a session of its own, which no group reaches, ends with the first process of the sandbox."""
    audit_all([entry("hides")], workers=1, time_limit=4, sandbox=True)
    until(lambda: hidden(folder) == [])


def hidden(folder: Path) -> list[str]:
    """Processes whose working directory is the folder, but this one."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                if (place / "cwd").readlink() == folder:
                    found.append((place / "cmdline").read_text()[:80])
            except OSError:
                continue
    return found


def test_without_a_sandbox_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_all, "trouble", lambda: "not permitted")
    with pytest.raises(InvalidValueError, match=r"no sandbox on this system: not permitted\. .*container"):
        audit_all([ModelEntry("a.pt2")], sandbox=True)


def test_limits_are_checked_first(tmp_path):
    with pytest.raises(InvalidValueError, match="memory size"):
        audit_all([ModelEntry("a.pt2")], memory_limit="much")


def test_rows_are_written_as_they_come(folder, monkeypatch):
    """The first entry is slow: the others are in the file before it has ended."""
    seen = []

    def stub(self, item):
        if item[0] == 0:
            rows = Path(folder, "out", "audits.jsonl")
            while rows.read_text().count("\n") < 9:
                time.sleep(0.01)
            seen.extend(json.loads(line)["path"] for line in rows.read_text().splitlines())
        return {"verdict": "BOUNDED", "reason": "stub"}

    monkeypatch.setattr(_all._Ask, "__call__", stub)
    entries = [ModelEntry(f"{k}.pt2") for k in range(10)]
    table = audit_all(entries, out=folder / "out", workers=3)
    assert sorted(seen) == [f"{k}.pt2" for k in range(1, 10)]
    lines = (folder / "out" / "audits.jsonl").read_text().splitlines()
    assert (
        [json.loads(line)["path"] for line in lines]
        == [row.path for row in table.rows]
        == [e.path for e in entries]
    )
    assert table.rows[3].path == "3.pt2" and [r.path for r in table.rows[-2:]] == ["8.pt2", "9.pt2"]


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("csv", (100, 300, 1_000)),
        ("jsonl", (100, 300, 1_000)),
        ("parquet", (100, 300, 1_000)),
        pytest.param("jsonl", (2_000, 20_000, 100_000), marks=pytest.mark.nightly),
    ],
)
def test_very_many_rows_take_no_memory(tmp_path, monkeypatch, kind, counts):
    """Four times as many rows, the same memory but for eight bytes each; records are written a hundred at a time."""
    monkeypatch.setattr("farfield.data._records._BATCH", 100)
    monkeypatch.setattr(_all._Ask, "__call__", lambda self, item: {"verdict": "BOUNDED", "reason": "x" * 500})
    monkeypatch.setattr("farfield.engine._checkpoint.Checkpoint.save", lambda *_: None)
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    peaks = []
    for count in counts:
        table = write_registry(tmp_path / f"registry.{kind}", count)
        gc.collect()
        tracemalloc.start()
        found = audit_all(table, out=tmp_path / f"out{count}", workers=2)
        assert found.counts["BOUNDED"] == count == len(found.rows)
        assert sum(1 for _ in found.rows) == count and found.rows[count - 1].path.endswith(f"{count - 1}.pt2")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # A row takes more than a kilobyte in memory. The first run also imports what the others have.
    assert peaks[2] - peaks[1] < 300 * (counts[2] - counts[1]), peaks
    assert peaks[2] < 60e6, peaks


def write_registry(path: Path, count: int) -> Path:
    if path.suffix == ".parquet":
        import pyarrow as arrow
        from pyarrow import parquet

        names = [f"models/{k}.pt2" for k in range(count)]
        parquet.write_table(arrow.table({"path": names}), path)
        return path
    with path.open("w") as file:
        if path.suffix == ".csv":
            file.write("path\n")
        for k in range(count):
            file.write(
                f"models/{k}.pt2\n"
                if path.suffix == ".csv"
                else json.dumps({"path": f"models/{k}.pt2"}) + "\n"
            )
    return path


def test_names_are_made_visible(folder, monkeypatch):
    monkeypatch.setattr(
        _all._Ask, "__call__", lambda self, item: {"error": "E\u202e", "message": "a\u200bb\x1b[1m"}
    )
    names = ["a\u202etp.pt2", "b\u200b.pt2", "c\udcff.pt2", "ok é.pt2"]
    audit_all([ModelEntry(n) for n in names], out=folder / "out", workers=1)
    text = (folder / "out" / "audits.jsonl").read_text(encoding="utf-8")
    assert not set("\u202e\u200b\x1b") & set(text)
    rows = [json.loads(line) for line in text.splitlines()]
    assert [r["path"] for r in rows] == ["a\\u202etp.pt2", "b\\u200b.pt2", "c\\udcff.pt2", "ok é.pt2"]
    assert rows[0]["message"] == "a\\u200bb\\x1b[1m"


def test_a_second_run_in_the_same_folder_is_refused(folder, monkeypatch):
    from farfield.engine import FolderInUseError

    def nested(self, item):
        with pytest.raises(FolderInUseError):
            audit_all([ModelEntry("a.pt2")], out=folder / "out", workers=1)
        return {"verdict": "BOUNDED"}

    monkeypatch.setattr(_all._Ask, "__call__", nested)
    assert audit_all([ModelEntry("good.pt2")], out=folder / "out", workers=1).counts["BOUNDED"] == 1
