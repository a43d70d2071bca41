"""The code blocks of README and of the pages: run in order, as a reader would, and compared with what the page shows.

    python tests/blocks.py [--write] [PAGE ...]

runs the pages named, or all of them; with ``--write`` the output that a page shows is replaced by what was printed.

- A block of ``python`` runs in the namespace of its page. A block of ``text`` right behind it is what it prints; so
  is the end of a line ``print(...)  # → value``.
- A block of ``console`` holds commands, each behind ``$``, and what they print; a block of ``sh`` commands alone,
  with their output in a block of ``text`` right behind it. Where no output is shown, none is compared.
- ``…`` in what is shown stands for anything: seconds, say.
- ``<!-- not run: reason -->`` in front of a block says that it does not run here, and why. Its Python is compiled and
  its commands' options are checked even so.
- ``<!-- exit 1 -->`` in front of commands says with which code the last of them ends.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<fence>`{3,})(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=fence)[ ]*$", re.DOTALL | re.MULTILINE
)
MARK = re.compile(r"<!-- (not run: (?P<reason>[^>]+?)|exit (?P<code>\d+)) -->\s*\Z")
COLUMNS = "100"


@dataclass
class Block:
    """One block to run: where it stands, what it holds, and the span of the page that shows its output."""

    line: int
    language: str
    body: str
    reason: str | None
    code: int
    shown: str | None
    span: tuple[int, int]


def blocks(text):
    """The blocks of Python and of commands on a page, in order."""
    fences = list(FENCE.finditer(text))
    found = []
    for at, fence in enumerate(fences):
        if fence["language"] not in ("python", "console", "sh", "bash"):
            continue
        mark = MARK.search(text, 0, fence.start())
        shown, span = None, fence.span("body")
        if fence["language"] != "console":
            following = fences[at + 1] if at + 1 < len(fences) else None
            if (
                following
                and following["language"] == "text"
                and not text[fence.end() : following.start()].strip()
            ):
                shown, span = following["body"], following.span("body")
        found.append(
            Block(
                line=text.count("\n", 0, fence.start()) + 1,
                language=fence["language"],
                body=fence["body"],
                reason=mark and mark["reason"],
                code=int(mark["code"]) if mark and mark["code"] else 0,
                shown=shown,
                span=span,
            )
        )
    return found


def commands(block):
    """The commands of a block, each with the output shown under it (None in a block without prompts)."""
    if block.language != "console":
        joined = block.body.replace("\\\n", " ")
        return [
            (line.strip(), None) for line in joined.splitlines() if line.strip() and not line.startswith("#")
        ]
    found = []
    for line in block.body.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (found[-1][0][:-1] + line.strip(), [])
        elif found:
            found[-1][1].append(line)
    return [(command, "\n".join(shown)) for command, shown in found]


def matches(shown, printed):
    """Whether the output is the one shown, which may leave things out by an ellipsis."""
    pattern = ".*?".join(map(re.escape, _tidy(shown).split("…")))
    return re.fullmatch(pattern, _tidy(printed), flags=re.DOTALL) is not None


def _tidy(text):
    text = re.sub(r"sha256 [0-9a-f]{8,}", "sha256 ", text)  # of weights: other processors round otherwise
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _argv(command):
    """The words of a command, without its comment, and the file that its standard output goes to."""
    words = shlex.split(command, comments=True)
    if ">" in words:
        return words[: words.index(">")], words[words.index(">") + 1]
    return words, None


def check_command(command):
    """Whether farfield has this command with these options; it is not run."""
    words, _ = _argv(command)
    if not words or words[0] != "farfield":
        return
    import click
    import typer

    from farfield.cli._app import app

    node = typer.main.get_command(app)
    arguments, name = words[1:], "farfield"
    while isinstance(node, click.Group) or hasattr(node, "commands"):
        if not arguments:
            return
        name, *arguments = arguments
        node = node.commands[name]
    known = {option for parameter in node.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in arguments if word.startswith("--") and word.partition("=")[0] not in known]
    if unknown:
        raise AssertionError(f"farfield {name} has no option {', '.join(unknown)}")


def run_command(command):
    """Run a command of farfield's in this process: its exit code, and what the terminal would show."""
    from farfield.cli import main

    words, target = _argv(command)
    if not words or words[0] != "farfield":
        raise AssertionError(f"{command!r} is not a command of farfield's: mark the block as not run")
    talk = io.StringIO()
    data = io.StringIO() if target else talk
    before, code = sys.argv, 0
    sys.argv = words
    try:
        with contextlib.redirect_stdout(data), contextlib.redirect_stderr(talk):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.argv = before
    if target:
        Path(target).write_text(data.getvalue(), encoding="utf-8")
    return code, talk.getvalue()


def run_python(block, names, page):
    """Run a block in its page's namespace: what it printed."""
    said = io.StringIO()
    code = compile(block.body, "example.py", "exec")  # reports name the file: not one of this machine's
    try:
        with contextlib.redirect_stdout(said):
            exec(code, names)
    except Exception as error:
        error.add_note(f"in the block of {page.name} at line {block.line}")
        raise
    return said.getvalue()


def run_page(page, *, write=False):
    """Run the blocks of a page in the current folder: a line for everything that is not as the page says.

    With ``write`` the page shows what was printed, and only what can't be mended so is returned.
    """
    text = page.read_text(encoding="utf-8")
    wrong, edits = [], []
    names = {"__name__": "__main__"}
    for block in blocks(text):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.reason:
            if block.language == "python":
                compile(block.body, str(page), "exec")
            else:
                for command, _ in commands(block):
                    check_command(command)
            continue
        if block.language == "python":
            printed = run_python(block, names, page)
            new, fault = _python_output(block, printed)
        else:
            new, fault = _command_output(block)
        if fault:
            wrong.append(f"{where}: {fault}")
        if new is not None:
            edits.append((block.span, new))
    if write and edits:
        for (start, end), new in reversed(edits):
            text = text[:start] + new + text[end:]
        page.write_text(text, encoding="utf-8")
        wrong = [line for line in wrong if "exit code" in line or "# →" in line]
    return wrong


def _python_output(block, printed):
    if block.shown is not None:
        if matches(block.shown, printed):
            return None, None
        return _tidy(printed) + "\n", f"it prints\n{printed}\nwhere the page shows\n{block.shown}"
    wanted = re.findall(r"# → (.*)$", block.body, flags=re.MULTILINE)
    if wanted and not matches("\n".join(wanted), printed):
        return None, f"it prints\n{printed}\nwhere its lines end in '# →'\n" + "\n".join(wanted)
    return None, None


def _command_output(block):
    out, fault, printed = [], None, []
    for command, shown in commands(block):
        code, said = run_command(command)
        printed.append(said)
        out.append((command, shown, said))
        if code not in (0, block.code):
            return None, f"$ {command}\nends with exit code {code}, not {block.code}:\n{said}"
    if block.code and code != block.code:
        return None, f"$ {command}\nends with exit code {code}, not {block.code}"
    if block.language == "console":
        for command, shown, said in out:
            if shown and not matches(shown, said):
                fault = f"$ {command}\nprints\n{said}\nwhere the page shows\n{shown}"
        if not fault:
            return None, None
        # A continued command is written on one line again: rewriting is rare, and the page is looked at.
        return "".join(f"$ {c}\n" + (_tidy(s if w else "") + "\n" if w else "") for c, w, s in out), fault
    if block.shown is not None and not matches(block.shown, "".join(printed)):
        return _tidy(
            "".join(printed)
        ) + "\n", f"it prints\n{''.join(printed)}\nwhere the page shows\n{block.shown}"
    return None, None


def prepare(folder, text):
    """Put into a folder the files that a page's commands name as the reader's own."""
    if "mypackage" in text or "model." in text or "make_" in text:
        package = folder / "mypackage"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("", encoding="utf-8")
        (package / "models.py").write_text(MODELS, encoding="utf-8")
    import numpy as np

    draw = np.random.default_rng(0)
    for name in ("rows.npy", "inputs.npy"):
        if name in text:
            np.save(folder / name, draw.normal(size=(200, 8)).astype(np.float32))
    for name in ("rows.csv", "inputs.csv"):
        if name in text:
            np.savetxt(folder / name, draw.normal(size=(200, 8)), delimiter=",")
    if "states.npy" in text:
        np.save(folder / "states.npy", draw.normal(size=(200, 2)).astype(np.float32))


MODELS = '''"""Models as a reader may have them."""

import torch
from torch import nn


class Critic(nn.Module):
    """A value of state and action."""

    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(23, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, state, action):
        return self.net(torch.cat([state, action], 1))


def make_critic():
    torch.manual_seed(0)
    return Critic()


def make_actor():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(17, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 6), nn.Tanh())


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 1))


def make_step():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))
'''


@contextlib.contextmanager
def reader():
    """A folder of the reader's own, with the files that pages name; the same random numbers on every page."""
    import torch

    here, path, columns = Path.cwd(), list(sys.path), os.environ.get("COLUMNS")
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        os.environ["COLUMNS"] = COLUMNS
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield Path(name)
        finally:
            os.chdir(here)
            sys.path[:] = path
            for module in [m for m in sys.modules if m.partition(".")[0] == "mypackage"]:
                del sys.modules[module]
            if columns is None:
                del os.environ["COLUMNS"]
            else:
                os.environ["COLUMNS"] = columns


def main():
    """Run the pages, print what is wrong with them, and end with 1 if anything is."""
    write = "--write" in sys.argv
    named = [Path(word).resolve() for word in sys.argv[1:] if word != "--write"]
    failed = False
    for page in named or PAGES:
        text = page.read_text(encoding="utf-8")
        if not blocks(text):
            continue
        import time

        started = time.perf_counter()
        with reader() as folder:
            prepare(folder, text)
            try:
                wrong = run_page(page, write=write)
            except Exception as error:
                import traceback

                traceback.print_exc()
                wrong = [f"{page.relative_to(ROOT)}: {error!r}"]
        print(
            f"{page.relative_to(ROOT)}: {time.perf_counter() - started:.1f} s, {len(wrong)} wrong", flush=True
        )
        for line in wrong:
            print(line)
        failed = failed or bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
