"""Where a number came from: versions, commit, platform and settings, as plain data."""

from __future__ import annotations

import datetime
import functools
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from farfield._typing import JSON

__all__ = ["provenance", "version"]


@functools.cache
def _commit() -> str | None:
    """The commit of the checkout this package runs from, None for an installed wheel; '+' marks local changes."""
    here = Path(__file__).resolve().parent
    if not (here.parent.parent / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def version(package: str) -> str | None:
    """Of a package that is installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def provenance(settings: dict[str, JSON], *, seed: int | None = None) -> dict[str, JSON]:
    """What an artifact embeds about itself: settings, seed, versions, commit, platform and date.

    Examples
    --------
    >>> sorted(provenance({"width": 10}, seed=0))
    ['commit', 'date', 'platform', 'python', 'seed', 'settings', 'versions']
    """
    return {
        "settings": settings,
        "seed": seed,
        "versions": {name: version(name) for name in ("farfield", "torch", "numpy")},
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
