"""The page on files: every block of Python on it runs, in order, and prints what the page says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"


@pytest.mark.filterwarnings("ignore")
def test_its_blocks_run_and_print_what_it_says(tmp_path, monkeypatch):
    for package in ("skl2onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {}
    for block in blocks:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(block, str(PAGE), "exec"), names)
        wanted = re.findall(r"print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
        assert said.getvalue().splitlines() == wanted
