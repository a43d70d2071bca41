"""What a command line names: a callable in a module, a file, a local folder of transformers."""

from __future__ import annotations

from farfield._target import example_input, load_target

__all__ = ["example_input", "load_target"]
