"""A registry of a million models, structure only: rows a second, memory, what a kill costs, Ray beside local.

    python -m benchmarks.census [--quick] [--rows N] [--few N] [--out FILE] [--keep FOLDER] [--no-ray]
                               [--part few|whole]

Configurations of the atlas with random sizes, one in a thousand of them broken, as one Parquet table. The whole
table is audited on the local engine with two workers whose caller is killed on the way and started again, and on Ray
with two workers of which one is killed; both tables must be the same to the last byte. A smaller one is audited on
both engines with one and two workers, and with both kills. Rates are rows for a second of processor time in the
workers, so that they mean something on a busy machine too. Ray listens on 127.0.0.1 only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._records import save_record
from farfield._provenance import provenance

FAMILIES = (
    ("BertModel", "bert"),
    ("DistilBertModel", "distilbert"),
    ("ViTModel", "vit"),
    ("GPT2Model", "gpt2"),
    ("OPTModel", "opt"),
    ("LlamaModel", "llama"),
    ("ResNetModel", "resnet"),
)
QUICK = FAMILIES[1:2] + FAMILIES[6:7]
DEPTHS = (1, 2)
SIZES = (3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 17, 19)
VOCABULARY = 50_021
GROUP = 10_000


def templates(families: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """Texts of configurations and of headers, one for every family, depth and width."""
    import torch

    from farfield.atlas._transformers import _config, class_of, library
    from farfield.audit._sizes import DEPTHS as DEPTH_NAMES
    from farfield.audit._sizes import is_width

    found = []
    for name, family in families:
        for depth in DEPTHS:
            for size in SIZES:
                settings = _config(library().CONFIG_MAPPING[family], True).to_dict()
                for key, value in list(settings.items()):
                    if key == "vocab_size":
                        settings[key] = VOCABULARY
                    elif type(value) is int and re.fullmatch(DEPTH_NAMES, key):
                        settings[key] = depth
                    elif key == "depths":
                        settings[key] = [depth] * len(value)
                    elif (
                        type(value) is int
                        and value > 1
                        and is_width(key)
                        and "heads" not in key
                        and "head" not in key
                    ):
                        settings[key] = value * size
                    elif (
                        isinstance(value, list)
                        and value
                        and is_width(key, True)
                        and all(type(v) is int for v in value)
                    ):
                        settings[key] = [v * size for v in value]
                settings |= {"architectures": [name], "model_type": family}
                if "head_dim" in settings and "num_attention_heads" in settings:
                    settings["head_dim"] = settings["hidden_size"] // settings["num_attention_heads"]
                with torch.device("meta"):
                    model = class_of(name, family)(library().CONFIG_MAPPING[family].from_dict(dict(settings)))
                place, header = 0, {}
                for key, tensor in model.state_dict().items():
                    end = place + 4 * tensor.numel()
                    header[key] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [place, end]}
                    place = end
                found.append((json.dumps(settings, default=str), json.dumps(header, separators=(",", ":"))))
    return found


def rows_of(count: int, known: list[tuple[str, str]], seed: int = 0) -> Iterator[dict[str, str]]:
    """Models with widths and vocabularies drawn at random; one in a thousand is broken in one of three ways."""
    draw = random.Random(seed)
    for number in range(count):
        config, header = known[draw.randrange(len(known))]
        words = str(draw.randrange(1_001, 30_000) | 1)
        config, header = (text.replace(str(VOCABULARY), words) for text in (config, header))
        if number % 1000 == 999:
            kind = number // 1000 % 3
            header = header[: len(header) // 2] if kind == 0 else header
            config = "[]" if kind == 1 else config
            config = config.replace('"architectures": ["', '"architectures": ["No') if kind == 2 else config
        yield {"path": f"models/{number:07d}", "config": config, "header": header}


def write_registry(path: Path, count: int, known: list[tuple[str, str]]) -> None:
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema([(name, pyarrow.string()) for name in ("path", "config", "header")])
    with parquet.ParquetWriter(path, schema, compression="zstd") as file:
        rows = []
        for row in rows_of(count, known):
            rows.append(row)
            if len(rows) == GROUP:
                file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                rows = []
        if rows:
            file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


# ------------------------------------------------------------------ one run, in a process of its own


def run_here(registry: str, out: str, engine: str, workers: int) -> None:
    from farfield import engine as engines
    from farfield.audit import census

    options: dict[str, Any] = {"out": out, "time_limit": 3600.0, "memory_limit": "4GB", "spot_check": 100_000}
    if engine == "local":
        found = census(registry, workers=workers, **options)
    else:
        with engines.ray(workers=workers) as cluster:
            found = census(registry, engine=cluster, **options)
    print(found, file=sys.stderr)


def start(registry: Path, out: Path, engine: str, workers: int) -> subprocess.Popen[bytes]:
    words = [
        sys.executable,
        "-m",
        "benchmarks.census",
        "--run",
        str(registry),
        str(out),
        engine,
        str(workers),
    ]
    return subprocess.Popen(words, start_new_session=True)


def tree(root: int) -> list[int]:
    """A process and all that come from it."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [root]
    while todo:
        one = todo.pop()
        found.append(one)
        todo += parents.get(one, [])
    return found


def memory(process: int) -> int:
    """Bytes of a process that are its own, shared ones divided among those that share them."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


def watch(process: subprocess.Popen[bytes], until: Any = None) -> dict[str, float]:
    """Wait for the end, or for ``until``; the largest memory of the caller and of all processes."""
    begun, caller, whole = time.perf_counter(), 0, 0
    while process.poll() is None:
        sizes = {number: memory(number) for number in tree(process.pid)}
        caller, whole = max(caller, sizes.get(process.pid, 0)), max(whole, sum(sizes.values()))
        if until is not None and until(process):
            break
        time.sleep(1.0)
    return {"seconds": time.perf_counter() - begun, "caller_bytes": caller, "all_bytes": whole}


def parts(out: Path, folder: str) -> int:
    return sum(1 for _ in (out / folder).glob("[0-9p]*.parquet")) if (out / folder).is_dir() else 0


def digest(out: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted((out / "audits").glob("part-*.parquet")):
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()


def finished(out: Path, rows: int, seen: dict[str, float]) -> dict[str, Any]:
    about = json.loads((out / "run.json").read_text())
    stages = about["stages"]
    work = sum(stages[name]["worker_seconds"] for name in ("keys", "rows"))
    computed = stages["keys"]["jobs"] - stages["keys"]["reused"]
    caller = sum(stage["caller_seconds"] for stage in stages.values())
    share = computed / stages["keys"]["jobs"]
    return {
        **seen,
        "rows": rows,
        "counts": about["counts"],
        "architectures": about["architectures"],
        "spot_checks": len(about["spot_checks"]),
        "spot_checks_that_differ": sum(c["verdict"] != c["own"] for c in about["spot_checks"]),
        "stages": stages,
        "rows_per_worker_second": share * rows / work if work else None,
        "rows_per_caller_second": share * rows / caller,
        "architecture_worker_seconds": stages["architectures"]["worker_seconds"],
        "table": digest(out),
    }


def kill_caller(out: Path, pieces: int) -> Any:
    """Kill the calling process when two fifths of the keys are there."""

    def due(process: subprocess.Popen[bytes]) -> bool:
        if parts(out, "keys") < max(1, 2 * pieces // 5):
            return False
        for number in [process.pid, *tree(process.pid)]:
            try:
                os.kill(number, signal.SIGKILL)
            except OSError:
                continue
        process.wait()
        return True

    return due


def kill_worker(out: Path, pieces: int) -> Any:
    """Kill a process that computes keys, once, when a fifth of them is there; the run goes on."""
    done: list[int] = []

    def due(process: subprocess.Popen[bytes]) -> bool:
        if not done and parts(out, "keys") >= max(1, pieces // 5):
            for number in tree(process.pid)[1:]:
                try:
                    words = Path(f"/proc/{number}/cmdline").read_bytes()
                except OSError:
                    continue
                if b"_nursery" in words:
                    os.kill(number, signal.SIGKILL)
                    done.append(number)
                    print(f"killed worker {number}", file=sys.stderr, flush=True)
                    break
        return False

    return due


def measure(
    rows: int,
    few: int,
    families: tuple[tuple[str, str], ...],
    place: Path,
    ray: bool,
    parts_wanted: list[str],
    save_partly: Any,
) -> dict[str, Any]:
    begun = time.perf_counter()
    whole, first = place / "whole.parquet", place / "first.parquet"
    tables_to_write = [
        (path, count)
        for path, count, name in ((whole, rows, "whole"), (first, few, "few"))
        if name in parts_wanted and not path.is_file()
    ]
    known = templates(families) if tables_to_write else []
    for path, count in tables_to_write:
        write_registry(path, count, known)
    record: dict[str, Any] = {
        "rows": rows,
        "templates": len(families) * len(DEPTHS) * len(SIZES),
        "registry_bytes": whole.stat().st_size if "whole" in parts_wanted else None,
        "seconds_to_write": time.perf_counter() - begun,
        "runs": {},
    }
    tables: dict[str, dict[str, str]] = {"first": {}, "whole": {}}

    def one(name: str, registry: Path, count: int, engine: str, workers: int, fault: Any = None) -> None:
        out, pieces = place / name, -(-count // GROUP)
        for earlier in (p for p in sorted(place.iterdir()) if (p / "run.json").is_file()):
            shutil.copytree(
                earlier / "finished", out / "finished", dirs_exist_ok=True
            )  # verdicts on architectures, not rows
            break
        save_partly(record)
        seen = watch(start(registry, out, engine, workers), None if fault is None else fault(out, pieces))
        if fault is kill_caller:
            record["runs"][f"{name}, until the kill"] = {
                **seen,
                "pieces_finished": parts(out, "keys"),
                "pieces": pieces,
            }
            seen = watch(start(registry, out, engine, workers))
        record["runs"][name] = finished(out, count, seen)
        tables[registry.stem][name] = record["runs"][name]["table"]
        print(json.dumps({name: record["runs"][name]}), file=sys.stderr, flush=True)

    if "few" in parts_wanted:
        one("first-local-1", first, few, "local", 1)
        one("first-local-2", first, few, "local", 2)
        one("first-local-1-caller-killed", first, few, "local", 1, kill_caller)
        if ray:
            one("first-ray-1", first, few, "ray", 1)
            one("first-ray-2", first, few, "ray", 2)
            one("first-ray-2-worker-killed", first, few, "ray", 2, kill_worker)
    if "whole" in parts_wanted:
        one("whole-local-2-caller-killed", whole, rows, "local", 2, kill_caller)
        if ray:
            one("whole-ray-2-worker-killed", whole, rows, "ray", 2, kill_worker)
        else:
            one("whole-local-2-worker-killed", whole, rows, "local", 2, kill_worker)
    record["tables_are_the_same"] = {name: len(set(found.values())) == 1 for name, found in tables.items()}
    return record


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="twenty thousand rows of three families")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=100_000)
    parser.add_argument("--out", type=Path, help="a file for the record")
    parser.add_argument("--keep", type=Path, help="a folder for tables and registries")
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--part", choices=["few", "whole"], action="append", help="only this part of it")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_here(*options.run[:3], int(options.run[3]))
        return
    rows, few = (20_000, 10_000) if options.quick else (options.rows, options.few)
    with tempfile.TemporaryDirectory() as folder:
        place = options.keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        about = provenance({"rows": rows, "few": few}, seed=0)

        def save(record: dict[str, Any]) -> None:
            if options.out is not None:
                save_record({**record, "provenance": about}, options.out)

        families = QUICK if options.quick else FAMILIES
        wanted = options.part or ["few", "whole"]
        record = measure(rows, few, families, place, not options.no_ray, wanted, save)
        save(record)
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
