"""The audit's zoo as ONNX files: does a file get the verdict and the horizon of the module it was exported from?

    python -m benchmarks.onnx_zoo [--names NAME …] [--out FOLDER]

Every model of ``tests/zoo`` that ``torch.onnx.export(dynamo=True)`` can write is audited twice, as a module and as a
file. Finished models are lines of a file beside the page, and are not computed again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from benchmarks.repair import kept_lines
from zoo._catalogue import SPECIMENS
from zoo.test_onnx_zoo import NOT_EXPORTED, compared

OUT = Path("docs/reproductions/onnx")


def outcome(name: str) -> str:
    """What differs; empty if nothing does."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return compared(name, Path(folder))
        except Exception as error:
            return f"{type(error).__name__}: {error}".partition("\n")[0]


def shortened(said: str) -> str:
    """One cell of the table."""
    plain = said.replace("|", "/")
    return plain if len(plain) <= 160 else plain[:160].rpartition(" ")[0] + " …"


def page(rows: list[dict[str, Any]]) -> str:
    """The record as a paragraph and a table."""
    written = [r for r in rows if r["said"] != NOT_EXPORTED]
    rest = sorted((r for r in written if r["said"]), key=lambda r: r["name"])
    wrong = sum(r["said"].startswith(("CONTRADICTION", "the horizon")) for r in rest)
    same = len(written) - len(rest)
    said = (
        f"Tried: {len(rows)} of the {len(SPECIMENS)} models of the audit's zoo. `torch.onnx.export` writes "
        f"{len(written)}; {same} files ({same / max(1, len(written)):.1%}) have the verdict and the horizon of their "
        f"module; {wrong or 'none'} "
        "contradict it. Made by `python -m benchmarks.onnx_zoo`."
    )
    lines = [said]
    if rest:
        lines += ["", "| model | what differs |", "|---|---|"]
        lines += [f"| `{r['name']}` | {shortened(r['said'])} |" for r in rest]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Every model that is not in the record; the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = given.out / "zoo.runs.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = kept_lines(path)
    done = {r["name"] for r in rows}
    here = [s for s in SPECIMENS if not s.slow and all(importlib.util.find_spec(p) for p in s.needs)]
    todo = [s.name for s in here if s.name not in done and s.name in (given.names or [s.name])]
    for number, name in enumerate(todo, 1):
        rows.append({"name": name, "said": outcome(name)})
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(f"{number}/{len(todo)} {name}: {rows[-1]['said'] or 'the same'}", file=sys.stderr, flush=True)
    (given.out / "zoo.md").write_text(page(rows), encoding="utf-8")
    print(page(rows))


if __name__ == "__main__":
    main()
