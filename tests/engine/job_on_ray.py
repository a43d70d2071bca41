"""A job that is submitted to a cluster as the documentation says, by Ray's own commands."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_tests import require_namespace

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cluster"


@pytest.fixture(scope="module")
def head():
    """What ``ray start --head`` starts. Ended by its process group: ``ray stop`` would end every cluster here."""
    require_namespace()
    ray = Path(sys.executable).with_name("ray")
    options = ["--head", "--node-ip-address=127.0.0.1", "--num-cpus=2", "--disable-usage-stats", "--block"]
    environment = {name: v for name, v in os.environ.items() if name != "FARFIELD_CHECK_SHAPES"}
    environment["PATH"] = os.pathsep.join([str(ray.parent), environment.get("PATH", "")])
    process = subprocess.Popen(
        [str(ray), "start", *options], env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen("http://127.0.0.1:8265/api/version", timeout=2).close()
                break
            except OSError:
                assert process.poll() is None, "ray start ended"
                time.sleep(0.5)
        yield ray, environment
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def test_the_job_of_the_documentation(head, tmp_path):
    ray, environment = head
    rows = tmp_path / "rows"
    x = np.random.default_rng(0).normal(size=(3000, 3))
    rows.mkdir()
    table = pa.table({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": np.sin(x[:, 0])})
    for number in range(3):
        pq.write_table(table.slice(1000 * number, 1000), rows / f"{number}.parquet", row_group_size=500)
    shutil.copy(EXAMPLE / "fit.py", tmp_path / "fit.py")
    words = ["--landmarks", "40"]
    done = subprocess.run(
        [str(ray), "job", "submit", "--address", "http://127.0.0.1:8265", "--working-dir", ".", "--",
         "python", "fit.py", str(rows), str(tmp_path / "out"), *words],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "3,000 rows; no input, however far, is predicted beyond" in done.stdout
    there = json.loads((tmp_path / "out" / "fit.json").read_text())
    assert there["rows"] == 3000 and there["training_error"] < 0.05
    parts = sorted((tmp_path / "out" / "predictions").glob("*.parquet"))
    tables = [pq.read_table(part) for part in parts]
    assert len(parts) == there["files"] and sum(map(len, tables)) == 3000
    for table in tables:
        mean, bound = table.column("mean").to_numpy(), table.column("bound").to_numpy()
        assert bool((np.abs(mean) <= bound).all()) and bool((bound <= there["bound"] * (1 + 1e-9)).all())
