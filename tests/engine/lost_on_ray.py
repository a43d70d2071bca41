"""What goes wrong with a cluster as a whole: memory, Ray's own processes, versions. Each in a process of its own."""

import os
import subprocess
import sys
import tempfile

import pytest

from farfield.engine._cluster import compare_versions
from farfield.errors import InvalidValueError
from ray_tests import require_namespace

KILL = """
import faulthandler, os, signal, subprocess, sys, threading, time
faulthandler.dump_traceback_later(int(sys.argv[3]))  # says where it hangs
from farfield.engine import ClusterLostError, ray

def slow(item):
    import time
    time.sleep(1)
    return item

running = threading.Event()

def kill(which):
    from ray._private import worker
    running.wait()  # a busy machine takes its time to start a cluster
    print("RUNNING", flush=True)
    session = worker.global_worker.node.get_session_dir_path()
    # Whole lines: in a worker of pytest-xdist COLUMNS is 80, and ps cuts them there.
    for line in subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True).stdout.splitlines():
        if which in line.split(" --")[0] and session in line:
            os.kill(int(line.split()[0]), signal.SIGKILL)

with ray(workers=1, store=80_000_000) as engine:
    told = lambda done, total: running.set() if done else None
    results = engine.map(slow, range(1000), progress=told) if sys.argv[2] == "map" else None
    threading.Thread(target=kill, args=[sys.argv[1]], daemon=True).start()
    try:
        if results is None:
            engine.reduce(slow, range(1000), max, progress=told)
        else:
            list(results)
    except ClusterLostError as error:
        print("LOST", error, flush=True)
        raise
"""

MEMORY = """
import os, sys, time
from pathlib import Path
import ray as library
from farfield.engine import TaskError, ray

log = Path(sys.argv[1])

def large(item):
    with log.open("a") as file:
        print(item, file=file, flush=True)
    time.sleep(60)

config = {"memory_usage_threshold": 0.001, "memory_monitor_refresh_ms": 100, "task_oom_retry_delay_base_ms": 100}
os.environ["RAY_task_oom_retries"] = "2"
from farfield.engine import _cluster
_cluster.MEMORY_RETRIES = 2
library.init(num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1", _system_config=config,
             object_store_memory=80_000_000, log_to_driver=False)
try:
    list(ray(workers=1).map(large, ["it"]))
except TaskError as error:
    print("TASK", error, flush=True)
os._exit(0)
"""


@pytest.fixture(autouse=True)
def namespace():
    require_namespace()


def said(program, *words, seconds=400):
    """What a program printed, and whether it ended by itself."""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("FARFIELD_CHECK_SHAPES", None)
    # To a file, not a pipe: processes of Ray that outlive the program would hold a pipe open.
    with tempfile.TemporaryFile() as out:
        command = [sys.executable, "-c", program, *words]
        try:
            subprocess.run(command, env=environment, stdout=out, stderr=out, timeout=seconds, check=False)
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
        out.seek(0)
        text = out.read().decode(errors="replace")
    print(text[-6000:])
    return text, ended


@pytest.mark.parametrize("how", ["map", "reduce"])
@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("raylet/raylet", "Ray's own process on this machine"),
        ("gcs_server", "The head of the cluster, at 127.0.0.1"),
    ],
)
def test_a_killed_raylet_and_a_killed_head_are_named(which, words, how):
    text, ended = said(KILL, which, how, "300")
    assert ended, "it hung"
    (line,) = [line for line in text.splitlines() if line.startswith("LOST")] or [text[-3000:]]
    assert words in line and "checkpoint" in line, line


def test_a_task_that_always_exceeds_its_memory_ends(tmp_path):
    log = tmp_path / "log"
    text, ended = said(MEMORY, str(log))
    assert ended, "it hung"
    (line,) = [line for line in text.splitlines() if line.startswith("TASK")] or [text[-3000:]]
    assert "failed on 'it': its worker was ended for memory, 3 times; the last time it had taken" in line
    # A worker may be ended before it has begun: no more than the tries, and it ends at all.
    assert not log.exists() or 1 <= len(log.read_text().splitlines()) <= 3


def test_versions():
    own = {"farfield": "1.0", "torch": "2.9", "python": "3.11", "numba": "0.68"}
    compare_versions(own, dict(own), "m")
    with pytest.raises(InvalidValueError, match=r"caller's farfield, 1\.0; m has farfield 0\.9"):
        compare_versions(own, {**own, "farfield": "0.9"}, "m")
    with pytest.raises(InvalidValueError, match="m has none"):
        compare_versions(own, {**own, "farfield": None}, "m")
    with pytest.warns(UserWarning, match=r"m of the cluster has torch 2\.8 \(here 2\.9\)"):
        compare_versions(own, {**own, "torch": "2.8"}, "m")
