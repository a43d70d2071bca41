"""The Ray engine: what can be said without a cluster here, and the rest in a namespace of its own."""

import importlib.util
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from engine_tasks import features, identical
from farfield.engine import RayEngine, local, ray
from farfield.engine._packed import pack, unpack
from farfield.engine._ray import owner
from farfield.errors import InvalidValueError, MissingExtraError
from ray_tests import run_on_ray


@pytest.mark.parametrize("file", ["engine_on_ray.py", "job_on_ray.py", "lost_on_ray.py"])
def test_on_a_cluster(file, tmp_path):
    if file.startswith("job") and importlib.util.find_spec("aiohttp_cors") is None:
        pytest.skip("jobs need Ray's dashboard: pip install 'ray[default]'")
    run_on_ray(Path(__file__).with_name(file), tmp_path)


def test_engines_are_values():
    engine = ray("somewhere:1", workers=3, threads=2, retries=0, store="1GB")
    assert engine == RayEngine("somewhere:1", 3, 2, 0, 10**9) != ray()
    assert pickle.loads(pickle.dumps(engine)) == engine
    assert engine.sharing == local().sharing == local().memories == 1 and local(3).sharing == 3


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"threads": 0}, {"retries": -1}])
def test_wrong_settings(wrong):
    with pytest.raises(InvalidValueError, match="at least one worker"):
        ray(**wrong)


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'farfield\[ray\]'"):
        list(ray().map(abs, [1]))


def test_importing_the_engine_does_not_import_ray():
    assert "ray" not in sys.modules or sys.modules["ray"] is None


# ------------------------------------------------------------------ values on their way


@pytest.mark.parametrize("copy", [True, False])
def test_tensors_come_back_as_they_were(copy):
    x = features(6, 4)
    tensors = [
        x, x.mT, x[1:4, ::2], x[:, :1].expand(6, 3), x[5], x[:0], torch.tensor(2.5), torch.zeros(0, 3),
        x.to(torch.bfloat16), x > 0, x.to(torch.complex64), torch.tensor([-0.0, torch.nan]),
    ]  # fmt: skip
    for tensor in tensors:
        again = unpack(pack(tensor), copy=copy)
        assert again.shape == tensor.shape and again.stride() == tensor.stride()
        assert again.dtype == tensor.dtype
        assert identical(again.reshape(-1), tensor.reshape(-1))


def test_only_what_a_view_covers_is_sent():
    x = features(1000)
    packed = pack((x[990:], x))
    assert packed.buffers[0].nbytes <= 10 * 3 * 8 + 64 and packed.buffers[1].nbytes == x.nbytes
    assert packed.content.nbytes < 1000


def test_nothing_is_copied_unless_asked():
    x, array = features(8), np.arange(5.0)
    packed = pack({"x": x, "array": array})
    there = unpack(packed, copy=False)
    x[0, 0], array[0] = 7.0, 7.0
    assert there["x"][0, 0] == 7 and there["array"][0] == 7
    own = unpack(packed, copy=True)
    own["x"][0, 0] = own["array"][0] = 8.0
    assert x[0, 0] == 7 and array[0] == 7


def test_modules_and_gradients():
    module = nn.Linear(3, 2)
    again = unpack(pack(module), copy=True)
    assert all(p.requires_grad for p in again.parameters())
    assert identical(again.weight.detach(), module.weight.detach())
    with pytest.raises(InvalidValueError, match="gradient does not pass"):
        pack({"loss": module(torch.ones(1, 3))})


@given(st.integers(1, 9), st.integers(0, 60))
def test_falling_sizes_are_shared_evenly(workers, count):
    owners = [owner(number, workers) for number in range(count)]
    assert all(0 <= who < workers for who in owners)
    loads = [sum(count - n for n, who in enumerate(owners) if who == worker) for worker in range(workers)]
    # One item at most over a fair share; handed out in turn they differ by the number of rounds.
    assert max(loads) - min(loads) <= count
    if count % (2 * workers) == 0:
        assert max(loads) == min(loads)


def test_the_manifest_runs_the_job_of_the_documentation():
    """No Kubernetes here: what can be checked is that the file is what it says, and asks for what there is."""
    yaml = pytest.importorskip("yaml")
    folder = Path(__file__).parents[2] / "examples" / "cluster"
    job = yaml.safe_load((folder / "rayjob.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    script, *words = job["spec"]["entrypoint"].split()[1:]
    assert Path(script).name == "fit.py" and words[-2:] == ["--landmarks", "2000"]
    groups = [
        job["spec"]["rayClusterSpec"]["headGroupSpec"],
        *job["spec"]["rayClusterSpec"]["workerGroupSpecs"],
    ]
    for group in groups:
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = {m["mountPath"]: m["name"] for c in pod["containers"] for m in c["volumeMounts"]}
        assert set(mounts.values()) == volumes and "/shared" in mounts
    head = groups[0]["template"]["spec"]["containers"][0]
    assert str(Path(script).parent) in {m["mountPath"] for m in head["volumeMounts"]}
    assert all(word.startswith("/shared/") for word in words[:2])
