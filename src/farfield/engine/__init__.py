"""Where work runs: tiles of a matrix, batches of a stream, and the engines that map, reduce and checkpoint them.

Holds: tiles and their sizes, the engine interface, engines local and on Ray, checkpoints, fingerprints, a bar.
May import: errors; ray when it is used.
Never: knows a kernel, a model or a dataset.
"""

from __future__ import annotations

from farfield.engine._bar import bar
from farfield.engine._checkpoint import Checkpoint
from farfield.engine._engine import Engine, Progress
from farfield.engine._fingerprint import fingerprint
from farfield.engine._local import LocalEngine, local
from farfield.engine._memory import empty_matrix, parse_memory, tile_height
from farfield.engine._ray import RayEngine, ray
from farfield.engine._resident import Resident
from farfield.engine._resolve import engine
from farfield.engine._task import TaskError
from farfield.engine._tile import Tile, tiles

__all__ = [
    "Checkpoint",
    "Engine",
    "LocalEngine",
    "Progress",
    "RayEngine",
    "Resident",
    "TaskError",
    "Tile",
    "bar",
    "empty_matrix",
    "engine",
    "fingerprint",
    "local",
    "parse_memory",
    "ray",
    "tile_height",
    "tiles",
]
