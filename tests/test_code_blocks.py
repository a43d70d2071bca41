"""Every code block of README and of the pages runs in order, and prints what the page shows."""

import logging

import pytest

import blocks

PAGES = [page for page in blocks.PAGES if blocks.blocks(page.read_text(encoding="utf-8"))]
NEEDS = {
    "ship.md": ("onnxruntime", "onnxscript", "safetensors"),
    "onnx.md": ("skl2onnx", "onnxruntime", "onnxscript"),
    "estimators.md": ("sklearn",),
    "regression.md": ("sklearn", "gpytorch"),
    "README.md": ("sklearn",),
    "command-line.md": ("matplotlib",),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(blocks.ROOT).as_posix())
def test_its_blocks_run_and_print_what_it_shows(page, monkeypatch):
    for package in NEEDS.get(page.name, ()):
        pytest.importorskip(package)
    monkeypatch.setattr(logging.getLogger(), "level", logging.ERROR)  # what a reader's terminal shows as well
    with blocks.reader() as folder:
        blocks.prepare(folder, page.read_text(encoding="utf-8"))
        wrong = blocks.run_page(page)
    assert not wrong, "\n".join(wrong)


def page_of(tmp_path, monkeypatch, text):
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_every_page_that_shows_code_is_run():
    names = {page.name for page in PAGES}
    assert names >= {"README.md", "index.md", "tutorial.md", "audit.md", "repair.md", "monitor.md"}


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n",
        "```python\nprint(1 + 1)  # → 3\n```\n",
        "```console\n$ farfield --version\n9.9.9\n```\n",
        "```sh\nfarfield audit nowhere.pt2\n```\n",
        "<!-- exit 1 -->\n```sh\nfarfield --version\n```\n",
    ],
)
def test_a_page_that_shows_something_else_is_found(text, tmp_path, monkeypatch):
    assert blocks.run_page(page_of(tmp_path, monkeypatch, text))


@pytest.mark.parametrize(
    "text",
    [
        "```python\nx = undefined\n```\n",
        "```sh\npip install farfield\n```\n",
        "<!-- not run: an option that is not there -->\n```sh\nfarfield audit model.pt2 --gone\n```\n",
        "<!-- not run: no Python at all -->\n```python\nfor in\n```\n",
    ],
)
def test_a_block_that_cannot_work_is_found(text, tmp_path, monkeypatch):
    page = page_of(tmp_path, monkeypatch, text)
    with pytest.raises((AssertionError, NameError, SyntaxError)):
        blocks.run_page(page)


def test_what_is_left_out_matches_anything_and_nothing_else_does():
    assert blocks.matches("took … s\ndone", "took 1.234 s\ndone\n")
    assert not blocks.matches("took … s\ndone", "took 1.234 s\n")


def test_a_page_is_rewritten_with_what_is_printed(tmp_path, monkeypatch):
    text = "```python\nx = 2\n```\n\n```python\nprint(x + 1)\n```\n\n```text\nold\n```\n"
    page = page_of(tmp_path, monkeypatch, text)
    assert not blocks.run_page(page, write=True)
    assert page.read_text(encoding="utf-8") == text.replace("old", "3")
