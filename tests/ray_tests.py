"""Running tests that start Ray: in a process of their own, in a network namespace of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import farfield
from namespace import is_inside, way_in


def run_on_ray(file: Path, folder: Path, seconds: int = 900) -> None:
    """Run a file of tests where Ray may be started; skip where that, or Ray, is not to be had."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'farfield[ray]'")
    inside = way_in()
    if inside is None:
        pytest.skip("Ray listens on sockets, and network namespaces are not permitted here")
    paths = [str(Path(farfield.__file__).parents[1]), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    environment["RAY_worker_niceness"] = "0"  # Ray's own 15 gets a thirtieth of a core beside the other tests
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
        "-o",
        f"faulthandler_timeout={seconds // 4}",  # says where a test hangs
        "-p",
        "no:cacheprovider",
    ]
    # Ray leaves sockets and processes to the collector, which is no fault of ours.
    warned = ["-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
    command = [*inside, *pytest_run, *warned, f"--basetemp={folder / 'inner'}", str(file)]
    root, said, complained = Path(__file__).parents[1], folder / "said.txt", folder / "complained.txt"
    with said.open("wb") as out, complained.open("wb") as errors:  # files keep what is said before a timeout
        try:
            code = subprocess.run(
                command, env=environment, stdout=out, stderr=errors, check=False, timeout=seconds, cwd=root
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"not done in {seconds} s"
    text, wrong = (file.read_text(encoding="utf-8", errors="replace") for file in (said, complained))
    print(text[-6000:])
    assert code == 0, (code, text[-8000:] + wrong[-3000:])
    assert " skipped" not in text.splitlines()[-1], text[-2000:]


def require_namespace() -> None:
    """Skip where a cluster would be seen from outside: a file of these tests was run by hand."""
    if not is_inside():
        pytest.skip("Ray is started in a network namespace only: run test_ray.py, which makes one")
