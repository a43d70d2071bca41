"""Many checkpoints: verdicts known by construction, files broken on purpose, runs that are stopped and go on."""

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import checkpoints as zoo
from farfield.audit import AuditTable, ModelEntry, audit_all, read_registry
from farfield.certify import Certificate, verify_certificate
from farfield.engine import Engine
from farfield.errors import InvalidValueError
from ray_tests import run_on_ray
from waiting import until

BROKEN = ["truncated", "malicious", "wrong_shapes", "missing_class", "raises", "crashes"]
ROOT = Path(__file__).resolve().parents[2]


def command(folder, *words):
    return [sys.executable, "-m", "farfield", "audit-all", *words], {"cwd": folder, "text": True}


def read_rows(folder):
    return [json.loads(line) for line in (folder / "audits.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def sixty(tmp_path_factory):
    """Sixty checkpoints, six broken, audited by one command."""
    folder = tmp_path_factory.mktemp("sixty")
    expected, failures = zoo.write_checkpoints(folder, 60, BROKEN, built=0.1)
    words, options = command(folder, "models/registry.jsonl", "--out", "out", "--workers", "2")
    done = subprocess.run(words, **options, capture_output=True, timeout=500)
    return folder, expected, failures, done


def test_every_verdict_and_every_error_is_as_built(sixty):
    folder, expected, failures, done = sixty
    rows = read_rows(folder / "out")
    assert zoo.disagreements(rows, expected, failures) == []
    assert len(rows) == 60 and sum(r["verdict"] is not None for r in rows) == 54
    assert set(expected.values()) == {"BOUNDED", "UNBOUNDED", "UNKNOWN"}
    assert done.returncode == 1
    assert "6 error" in done.stdout and "truncated.pt2" in done.stdout
    # Nothing that a file holds was run, and rows come in the order of the registry.
    assert not (folder / "models" / "TOUCHED").exists()
    registry = (folder / "models" / "registry.jsonl").read_text().splitlines()
    assert [r["path"] for r in rows] == [json.loads(line)["path"] for line in registry]
    run = json.loads((folder / "out" / "run.json").read_text())
    assert run["models"] == 60 and run["failed"] == 6 and run["provenance"]["versions"]["torch"]


@pytest.mark.parametrize("change", ["verdict", "error", "word", "absent", "twice"])
def test_the_comparison_sees_what_is_wrong(sixty, change):
    folder, expected, failures, _ = sixty
    rows = read_rows(folder / "out")
    good, bad = (next(r for r in rows if (r["path"] in expected) == sound) for sound in (True, False))
    if change == "verdict":
        good["verdict"] = "UNKNOWN" if good["verdict"] == "BOUNDED" else "BOUNDED"
    elif change == "error":
        bad["verdict"] = "BOUNDED"
    elif change == "word":
        bad["message"] = "something"
    elif change == "absent":
        rows.remove(good)
    else:
        rows.append(dict(good))
    assert zoo.disagreements(rows, expected, failures)


def test_bounds_hold_near_and_far(sixty):
    folder, *_ = sixty
    generator = torch.Generator().manual_seed(3)
    checked = 0
    for row in read_rows(folder / "out"):
        if row["low"] is None or not row["path"].endswith(".pt2"):
            continue
        assert row["verdict"] == "BOUNDED" and row["bound_by"] == "audit"
        model = torch.export.load(folder / "models" / row["path"]).module()
        d = next(p for p in model.parameters() if p.ndim == 2).shape[1]
        for scale in (1.0, 1e2, 1e4):
            for _ in range(20):
                y = model(scale * torch.randn(1, d, generator=generator)).detach()
                slack = 1e-5 * max(1.0, abs(row["low"]), abs(row["high"]))  # float32 against real arithmetic
                assert row["low"] - slack <= float(y.min()) <= float(y.max()) <= row["high"] + slack
        checked += 1
    assert checked >= 15


def test_parquet_holds_the_same(sixty):
    parquet = pytest.importorskip("pyarrow.parquet")
    folder, *_ = sixty
    table = parquet.read_table(folder / "out" / "audits.parquet")
    assert table.to_pylist() == read_rows(folder / "out")
    assert json.loads(table.schema.metadata[b"farfield"])["models"] == 60
    assert {str(table.schema.field(n).type) for n in ("low", "high", "seconds")} == {"double"}


def test_a_second_run_computes_what_is_new_what_failed_and_what_has_other_code(sixty):
    folder, expected, _, _ = sixty
    before = {r["path"]: r for r in read_rows(folder / "out")}
    lines = (folder / "models" / "registry.jsonl").read_text().splitlines()
    lines = [line for line in lines if json.loads(line)["path"] not in ("crashes.pth", "raises.safetensors")]
    new = next(p for p in expected if p.endswith(".pt2"))
    (folder / "models" / "copy.pt2").write_bytes((folder / "models" / new).read_bytes())
    (folder / "models" / "grown.jsonl").write_text("\n".join([json.dumps({"path": "copy.pt2"}), *lines]))
    code = folder / "zoo_models.py"
    code.write_text(code.read_text() + "\n# another version\n")
    words, options = command(folder, "models/grown.jsonl", "--out", "out", "--json", "--fail-on", "none")
    done = subprocess.run(words, **options, capture_output=True, timeout=500)
    assert done.returncode == 0, done.stderr
    rows = {r["path"]: r for r in map(json.loads, done.stdout.splitlines())}
    assert len(rows) == 60 - 2 + 1
    assert rows["copy.pt2"]["verdict"] == expected[new]
    assert rows["copy.pt2"]["sha256"] == before[new]["sha256"]
    programs = [path for path in expected if path.endswith(".pt2")]
    assert f"{len(programs)} rows had been finished before" in done.stderr
    assert all(rows[path] == before[path] for path in programs)  # to the last digit of their seconds
    built = [path for path in expected if path not in programs]
    assert len(built) >= 4
    assert all(rows[path]["verdict"] == expected[path] for path in built)
    assert all(rows[path]["seconds"] != before[path]["seconds"] for path in built)


class Elsewhere(Engine):
    """Sends every task and item through pickle, as a cluster does."""

    def run(self, task, items):
        for item in items:
            sent = pickle.loads(pickle.dumps((task, item)))
            yield pickle.loads(pickle.dumps(sent[0](sent[1])))


def pickled_weight(source: Path, target: Path, touched: Path) -> None:
    """A .pt2 whose first weight is a pickle that runs code."""
    with zipfile.ZipFile(source) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    place = next(name for name in contents if name.endswith("weights_config.json"))
    config = json.loads(contents[place])
    first = next(iter(config["config"].values()))
    first["use_pickle"] = True
    contents[place] = json.dumps(config).encode()
    payload = io.BytesIO()
    torch.save(zoo.Touch(touched), payload)
    contents[next(name for name in contents if name.endswith(f"/{first['path_name']}"))] = payload.getvalue()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def test_whatever_is_wrong_with_one_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo_models.py").write_text(zoo.MODELS)
    (tmp_path / "folder.pt2").mkdir()
    save_file({"weight": torch.ones(1, 4), "bias": torch.zeros(1)}, "w.safetensors")
    bounded = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1)).eval()
    torch.export.save(torch.export.export(bounded, (torch.zeros(1, 3),)), "good.pt2")
    touched = tmp_path / "TOUCHED"
    pickled_weight(Path("good.pt2"), Path("pickled.pt2"), touched)
    with pytest.raises(Exception, match=r".*"):
        torch.export.load("pickled.pt2")
    assert touched.exists()  # that file does run code, where nobody minds
    touched.unlink()
    for name in ("opaque.pt2", "compiled.pt2"):
        with zipfile.ZipFile(name, "w") as archive:
            inside = {
                "opaque.pt2": "data/constants/opaque_obj_0",
                "compiled.pt2": "data/aotinductor/model/a.so",
            }
            archive.writestr(f"m/{inside[name]}", b"x")
    linear = {"inputs": ("1x4",), "builder": "zoo_models:single"}
    entries = {
        "double": (ModelEntry("w.safetensors", **linear), "UNBOUNDED", ""),
        # The builder before it left float64 behind as the default: this one must not notice.
        "after it": (
            ModelEntry("w.safetensors", ("1x4",), "torch.nn:Linear", '{"in_features": 4, "out_features": 1}'),
            "UNBOUNDED",
            "",
        ),
        "leaves": (ModelEntry("w.safetensors", ("1x4",), "zoo_models:leaves"), "WorkerDied", "exit code 7"),
        "quits": (ModelEntry("w.safetensors", ("1x4",), "zoo_models:quits"), "SystemExit", "no"),
        "absent": (ModelEntry("absent.pt2"), "FileNotFoundError", "absent.pt2"),
        "a folder": (ModelEntry("folder.pt2"), "UnsafeFileError", "folder.pt2"),
        "no name": (ModelEntry(""), "UnsafeFileError", ""),
        "null": (ModelEntry("a\0b.pt2"), "ValueError", "null"),
        "surrogate": (ModelEntry("a\udcff.pt2"), "UnicodeError", "Unicode"),
        "bad input": (ModelEntry("w.safetensors", ("four",), "zoo_models:single"), "InvalidValueError", "1x8"),
        "no input": (ModelEntry("w.safetensors", (), "zoo_models:single"), "InvalidValueError", "shapes"),
        "no builder": (ModelEntry("w.safetensors", ("1x4",)), "InvalidValueError", "builder"),
        "needless": (ModelEntry("good.pt2", (), "zoo_models:single"), "InvalidValueError", "no builder"),
        "arguments": (ModelEntry("w.safetensors", **linear, arguments="[3]"), "InvalidValueError", "JSON object"),
        "unknown end": (ModelEntry("zoo_models.py"), "InvalidValueError", "ends in"),
        "pickled": (ModelEntry("pickled.pt2"), "CheckpointError", "stored as a pickle"),
        "opaque": (ModelEntry("opaque.pt2"), "CheckpointError", "which is code, a pickle or not known"),
        "compiled": (ModelEntry("compiled.pt2"), "CheckpointError", "which is code, a pickle or not known"),
        "good": (ModelEntry("good.pt2"), "BOUNDED", ""),
        "good again": (ModelEntry("good.pt2"), "BOUNDED", ""),
    }  # fmt: skip
    table = audit_all(
        (e for e, _, _ in entries.values()), out="out", engine=Elsewhere(), certify=1.0, details=True
    )
    assert len(table.rows) == len(entries)
    for row, (name, (_, wanted, word)) in zip(table.rows, entries.items(), strict=True):
        assert (row.error or row.verdict) == wanted, (name, row)
        assert word in (row.message or ""), (name, row)
        assert (row.verdict is None) == (row.error is not None)
    assert not touched.exists()
    good = table.rows[-1]
    assert good.bound_by == "certificate" and good.tightness >= 1.0
    certificate = Certificate.load(tmp_path / "out" / "certificates" / good.certificate)
    assert verify_certificate("good.pt2", certificate)
    assert good.low == float(certificate.lower.min()) and good.high == float(certificate.upper.max())
    details = json.loads((tmp_path / "out" / "details" / good.details).read_text())
    assert details["verdict"] == "BOUNDED" and details["rays"]["series"]
    json.loads(json.dumps([row.to_dict() for row in table.rows], allow_nan=False))


def test_time_limit_and_interrupt(tmp_path):
    """A model that never ends: reported after its time; or, interrupted, gone at once and with nothing lost."""
    (tmp_path / "zoo_models.py").write_text(zoo.MODELS)
    model = nn.Linear(4, 1)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    torch.export.save(torch.export.export(model.eval(), (torch.zeros(1, 4),)), tmp_path / "a.pt2")
    hangs = {"path": "w.safetensors", "inputs": "1x4", "builder": "zoo_models:hangs"}
    text = "\n".join(map(json.dumps, [{"path": "a.pt2"}, hangs, {"path": "zoo_models.py"}]))
    (tmp_path / "registry.jsonl").write_text(text)
    words, options = command(tmp_path, "registry.jsonl", "--out", "out", "--workers", "2")
    # Where these tests run in the background of a shell, SIGINT is ignored, and a child would inherit that.
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(
        words, **options, **heard, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        until(lambda: list(tmp_path.glob("out/finished/*/*.result")), alive=lambda: running.poll() is None)
        running.send_signal(signal.SIGINT)
        _, talk = running.communicate(timeout=100)
    assert running.returncode == 130, talk
    rows = read_rows(tmp_path / "out")  # what was done is there, and how to go on is said
    assert 1 <= len(rows) <= 2 and "a.pt2" in {row["path"] for row in rows}
    assert f"{len(rows)} rows are in" in talk and "run the same command" in talk
    done = subprocess.run(
        [*words, "--time-limit", "2", "--json"], **options, capture_output=True, timeout=300
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [r["error"] for r in rows] == [None, "TimeLimit", "InvalidValueError"]
    assert rows[0]["verdict"] == "UNBOUNDED" and "finished before" in done.stderr
    assert rows[1]["stage"] == "load" and rows[1]["seconds"] >= 2.0


# ------------------------------------------------------------------ registries


def test_a_folder_is_searched_and_the_results_in_it_are_not(tmp_path):
    for name in ("b.pt2", "a/c.safetensors", "a/d.txt", ".hidden/e.pt2", "out/f.pt2", "a/.g.pt2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = read_registry(tmp_path, inputs=["1x8"], builder="m:f", leave_out=tmp_path / "out")
    assert found == (ModelEntry("b.pt2", ("1x8",), None), ModelEntry("a/c.safetensors", ("1x8",), "m:f"))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_tables(tmp_path, kind):
    table = tmp_path / f"registry.{kind}"
    if kind == "csv":
        table.write_text(
            "owner,path,inputs,dtype,builder,arguments\n"
            'me,a.pt,1x8;1x2:int64,float64,m:f,"{""w"": 3}"\nme,b.pt2,,,,\n'
        )
    else:
        rows = [
            {"path": "a.pt", "inputs": ["1x8", "1x2:int64"], "dtype": "float64", "builder": "m:f",
             "arguments": '{"w": 3}'},
            {"path": "b.pt2", "inputs": None, "dtype": None, "builder": None, "arguments": None},
        ]  # fmt: skip
        if kind == "jsonl":
            table.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
        else:
            arrow = pytest.importorskip("pyarrow")
            pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), table)
    assert read_registry(table) == (
        ModelEntry("a.pt", ("1x8:float64", "1x2:int64"), "m:f", '{"w": 3}'),
        ModelEntry("b.pt2"),
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.jsonl", "", "no rows"),
        ("r.jsonl", '{"path": "a"}\n{', "can't be read"),
        ("r.jsonl", '{"file": "a"}', "column 'path'"),
        ("r.jsonl", "[1]", "column 'path'"),
        ("r.csv", "file\na\n", "column 'path'"),
        ("r.parquet", "nonsense", "can't be read"),
        ("r.txt", "a", "ends in"),
        ("absent.csv", None, "no registry"),
        ("empty", None, "folder|no checkpoint"),
    ],
)
def test_a_wrong_registry_is_refused_with_the_reason(tmp_path, name, text, message):
    if name == "r.parquet":
        pytest.importorskip("pyarrow")
    if name == "empty":
        (tmp_path / name).mkdir()
    elif text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidValueError, match=message):
        read_registry(tmp_path / name)


def test_wrong_options_are_refused(tmp_path):
    one = [ModelEntry("a.pt2")]
    for options in ({"time_limit": 0}, {"certify": -1, "out": tmp_path}, {"certify": 1}, {"workers": 0}):
        with pytest.raises(InvalidValueError):
            audit_all(one, **options)


def test_an_empty_table_has_counts():
    assert AuditTable(()).counts == {"BOUNDED": 0, "UNBOUNDED": 0, "UNKNOWN": 0, "ERROR": 0}


@pytest.mark.nightly
def test_a_thousand(tmp_path):
    words = [sys.executable, "-m", "benchmarks.audit_all", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", *sys.path])}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["otherwise than built"] == [] and not found["code was run on loading"]
    assert found["models"] == 1000 and found["verdicts"]["ERROR"] == 10


def test_sweeps_and_audits_on_a_cluster(tmp_path):
    run_on_ray(Path(__file__).with_name("sweeps_on_ray.py"), tmp_path)
