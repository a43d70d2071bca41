"""A call to Ray that never comes back: the cluster is looked at meanwhile. Without Ray."""

import threading

import pytest

from farfield.engine import ClusterLostError
from farfield.engine import _cluster as cluster


class FakeRay:
    def is_initialized(self):
        return True


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(cluster, "_BETWEEN", 0.01)
    monkeypatch.setattr(cluster, "_own_node", lambda ray: None)
    return cluster.Watch(FakeRay())


def test_a_call_that_hangs_is_left_behind_when_the_cluster_has_gone(watch, monkeypatch):
    looks, never = [], threading.Event()

    def look(*, now=False):
        looks.append(now)
        if len(looks) == 3:
            raise ClusterLostError("gone")

    monkeypatch.setattr(watch, "look", look)
    with pytest.raises(ClusterLostError, match="gone"):
        watch.during(never.wait)
    assert len(looks) == 3
    never.set()


def test_values_and_errors_come_back(watch):
    assert watch.during(lambda: 7) == 7

    def wrong():
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        watch.during(wrong)
    slow = threading.Event()
    threading.Timer(0.2, slow.set).start()
    assert watch.during(slow.wait)  # longer than one look
