"""Running tests that start Ray: in a process of their own, in a network namespace of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import farfield
from namespace import is_inside, way_in


def run_on_ray(file: Path, folder: Path, seconds: int = 400) -> None:
    """Run a file of tests where Ray may be started; skip where that, or Ray, is not to be had."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'farfield[ray]'")
    inside = way_in()
    if inside is None:
        pytest.skip("Ray listens on sockets, and network namespaces are not permitted here")
    paths = [str(Path(farfield.__file__).parents[1]), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    for name in ("RAY_ADDRESS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    pytest_run = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-rs",
        "--durations=8",
        "-p",
        "no:cacheprovider",
    ]
    # Ray leaves sockets and processes to the collector, which is no fault of ours.
    warned = ["-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
    command = [*inside, *pytest_run, *warned, f"--basetemp={folder / 'inner'}", str(file)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=seconds,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    print(done.stdout[-6000:])
    assert done.returncode == 0, (done.returncode, done.stdout[-8000:] + done.stderr[-3000:])
    assert " skipped" not in done.stdout.splitlines()[-1], done.stdout[-2000:]


def require_namespace() -> None:
    """Skip where a cluster would be seen from outside: a file of these tests was run by hand."""
    if not is_inside():
        pytest.skip("Ray is started in a network namespace only: run test_ray.py, which makes one")
