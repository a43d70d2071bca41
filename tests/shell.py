"""``farfield …`` as a shell runs it, in this process: a new one imports torch for five seconds.

What a process of its own decides (signals, limits of memory, a disk that is full) is tested with one.
"""

import contextlib
import io
import os
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

from farfield.cli import main

ROOT = Path(__file__).resolve().parents[1]


def run(folder, *words):
    """Exit code, output and errors of a command in a folder, as ``subprocess.run`` gives them."""
    out, err, before, here = io.StringIO(), io.StringIO(), set(sys.modules), os.getcwd()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["farfield", *map(str, words)]),
        mock.patch.object(sys, "path", list(sys.path)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        os.chdir(folder)
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            os.chdir(here)
            for name in (
                set(sys.modules) - before
            ):  # the folder's own modules: another folder has others of that name
                file = getattr(sys.modules[name], "__file__", None)
                if (
                    file
                    and Path(file).is_relative_to(Path(folder).resolve())
                    and not ROOT.is_relative_to(folder)
                ):
                    del sys.modules[name]
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
