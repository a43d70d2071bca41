"""Datasets: found, checked, split; and refused where they are not what they should be."""

import gzip
import hashlib
import io
import lzma
import sys
import tarfile
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farfield import data
from farfield.data import _catalogue, _files, _images, _load
from farfield.data._catalogue import File
from farfield.data._files import DataError
from farfield.errors import InvalidValueError, MissingExtraError, UnknownNameError


def here(name):
    try:
        for forms in data.info(name).files:
            _files.find(name, forms)
    except DataError as error:
        pytest.skip(str(error))


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No file of any dataset, and a cache of one's own."""
    monkeypatch.delenv("FARFIELD_DATA", raising=False)
    monkeypatch.setattr(_files, "folders", lambda: (tmp_path,))
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.data
@pytest.mark.parametrize("name", data.dataset_names())
def test_every_dataset_loads_as_the_catalogue_says(name):
    if name == "utkface":
        pytest.skip("unpacks a gigabyte of images; see the slow test")
    here(name)
    d = data.load(name, seed=3)
    total = len(d.train) + len(d.id) + len(d.ood)
    missing = {"california": 207}.get(name, 0)
    assert total == data.info(name).rows - missing
    assert len(d.features) == (d.train.x.shape[1] if d.features != ("pixels",) else 1)
    assert d.license and d.citation and d.split
    assert np.isfinite(d.train.x).all() and np.isfinite(d.train.y).all()
    again, other = data.load(name, seed=3), data.load(name, seed=4)
    assert np.array_equal(d.train.x, again.train.x) and np.array_equal(d.train.y, again.train.y)
    if "official" not in d.split:
        assert not np.array_equal(d.train.y, other.train.y)


@pytest.mark.data
@pytest.mark.nightly
def test_faces():
    here("utkface")
    d = data.load("utkface")
    assert len(d.train) + len(d.id) == 22_012 and len(d.ood) == 1_692 and d.train.x.shape[1:] == (128, 128, 3)


@pytest.mark.data
def test_the_protein_split_is_the_papers():
    here("protein")
    d = data.load("protein")
    assert len(d.train) == 40_132 and len(d.id) == 4_459 and len(d.ood) == 1_139
    assert d.train.x[:, 0].max() < 20_000 <= d.ood.x[:, 0].min()
    assert d.features == tuple(f"F{k}" for k in range(1, 10)) and d.targets == ("RMSD",)


@pytest.mark.data
def test_nothing_that_gives_the_target_away_is_a_feature():
    here("bike_hour")
    d = data.load("bike_hour")
    assert not {"casual", "registered", "instant"} & set(d.features) and d.targets == ("cnt",)


@given(
    st.integers(2, 60),
    st.floats(0.1, 1.0),
    st.integers(0, 5),
)
def test_a_split_loses_and_doubles_nothing(rows, share, seed):
    x = np.arange(float(rows))[:, None]
    far = x[:, 0] >= rows * 0.8
    train, near, ood = data.far_field_split(x, x[:, 0], far=far, share=share, seed=seed)
    assert sorted([*train.y, *near.y, *ood.y]) == x[:, 0].tolist()
    assert set(ood.y) == set(x[far, 0])
    assert len(train) == round(share * int((~far).sum()))
    assert np.array_equal(train.x[:, 0], train.y)


def test_a_part_has_as_many_targets_as_inputs():
    with pytest.raises(InvalidValueError, match="3 inputs and 2 targets"):
        data.Part(np.zeros((3, 1)), np.zeros(2))
    with pytest.raises(InvalidValueError, match="share"):
        data.far_field_split(np.zeros((3, 1)), np.zeros(3), far=np.zeros(3, bool), share=0.0)


def test_toys_are_what_they_say():
    for name, f in (("sinusoid", np.sin), ("linear", lambda x: x / 2), ("quadratic", lambda x: x**2 / 10)):
        d = data.load(name, seed=1)
        assert np.array_equal(d.ood.y, f(d.ood.x[:, 0]))
        assert 0.05 < np.std(d.train.y - f(d.train.x[:, 0])) < 0.2
        assert np.abs(d.train.x).max() <= 5 <= np.abs(d.ood.x).min() + 1e-9


def test_an_unknown_name_has_near_matches():
    with pytest.raises(UnknownNameError, match="protein"):
        data.load("protien")


def test_a_missing_file_says_where_it_was_looked_for_and_what_to_do(nowhere):
    with pytest.raises(DataError, match=r"farfield data fetch protein") as caught:
        data.load("protein")
    assert str(nowhere) in str(caught.value)
    with pytest.raises(DataError, match="FARFIELD_DATA"):
        data.load("utkface")


def test_a_wrong_file_is_refused(nowhere):
    (nowhere / "protein").mkdir()
    (nowhere / "protein" / "CASP.csv.xz").write_bytes(lzma.compress(b"RMSD,F1\n1,2\n"))
    with pytest.raises(InvalidValueError, match="sha256 differs"):
        data.load("protein")


def test_folders_come_in_order(monkeypatch, tmp_path):
    monkeypatch.setenv("FARFIELD_DATA", str(tmp_path / "mine"))
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    found = _files.folders()
    assert found[0] == tmp_path / "mine" and found[-1] == tmp_path / "cache"
    monkeypatch.delenv("FARFIELD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _files.cache_folder() == tmp_path / "farfield"


def test_fetching_checks_the_hash_and_keeps_the_file(nowhere, monkeypatch):
    """With a stand-in for pooch: no network in tests."""
    text = b"RMSD," + b",".join(b"F%d" % k for k in range(1, 10)) + b"\n" + b"1,2,3,4,5,6,7,8,9,10\n" * 20
    digest = "sha256:" + hashlib.sha256(text).hexdigest()
    entry = data.info("protein")
    forms = (File("protein/CASP.csv", digest, "https://example.org/CASP.csv"),)
    patched = {**_catalogue.CATALOGUE, "protein": type(entry)(**{**vars(entry), "files": (forms,)})}
    monkeypatch.setattr(_catalogue, "CATALOGUE", patched)
    asked = []

    def retrieve(url, known_hash, path, fname, progressbar):
        asked.append((url, known_hash))
        path.mkdir(parents=True)
        (path / fname).write_bytes(text)
        return str(path / fname)

    monkeypatch.setitem(sys.modules, "pooch", types.SimpleNamespace(retrieve=retrieve))
    (path,) = data.fetch("protein")
    assert path == nowhere / "protein" / "CASP.csv" and asked == [("https://example.org/CASP.csv", digest)]
    assert data.fetch("protein") == (path,) and len(asked) == 1
    assert len(data.load("protein").train) == 18
    monkeypatch.setitem(sys.modules, "pooch", None)
    path.unlink()
    with pytest.raises(MissingExtraError, match=r"farfield\[data\]"):
        data.fetch("protein")


def test_idx_files(tmp_path):
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "x.gz"
    path.write_bytes(
        gzip.compress(
            b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 3, 4)) + values.tobytes()
        )
    )
    assert np.array_equal(_images.read_idx(path), values)
    path.write_bytes(gzip.compress(b"\x00\x00\x0d\x03"))
    with pytest.raises(InvalidValueError, match="IDX"):
        _images.read_idx(path)


def test_the_official_cifar_archive(tmp_path):
    draw = np.random.default_rng(0)
    rows = [draw.integers(0, 256, (4, 3073), dtype=np.uint8) for _ in range(6)]
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for k, part in enumerate(rows):
            name = f"data_batch_{k + 1}.bin" if k < 5 else "test_batch.bin"
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = part.nbytes
            archive.addfile(member, io.BytesIO(part.tobytes()))
    images, labels = _images.read_cifar(path)
    assert images.shape == (24, 32, 32, 3) and np.array_equal(labels[:4], rows[0][:, 0])
    assert images[5, 2, 7, 1] == rows[1][1, 1 + 1024 + 2 * 32 + 7]


def test_the_leading_feature_has_a_tail():
    draw = np.random.default_rng(0)
    binary, wide = (draw.random(500) > 0.5).astype(float), draw.standard_normal(500)
    assert _load._leading(np.stack([binary, wide], 1), binary + 0.3 * wide) == 1


# ------------------------------------------------------------------ faces and weights


@pytest.fixture
def packed(tmp_path):
    """Four gray images in the form of UTKFace's file; the third has no age."""
    image = pytest.importorskip("PIL.Image")
    blobs = []
    for gray in (10, 60, 110, 160):
        buffer = io.BytesIO()
        image.fromarray(np.full((128, 128, 3), gray, np.uint8)).save(buffer, "WEBP", lossless=True)
        blobs.append(np.frombuffer(buffer.getvalue(), np.uint8))
    path = tmp_path / "faces.npz"
    offsets = np.cumsum([0, *(len(b) for b in blobs)])
    labels = {"age": np.array([1, 20, -1, 40]), "race": np.array([0, 4, 0, 0])}
    np.savez(path, blob=np.concatenate(blobs), offsets=offsets, **labels)
    return path


def test_faces_are_unpacked_when_asked_for(packed):
    faces = _images.read_faces(packed)
    assert len(faces) == 3 and faces.age.tolist() == [1, 20, 40] and faces.ethnicity.tolist() == [0, 4, 0]
    images = faces.images(np.array([2, 0]))
    assert images.shape == (2, 128, 128, 3) and images[:, 5, 7, 1].tolist() == [160, 10]
    d = _load._faces(data.info("utkface"), (packed,), 0)
    assert d.ood.y.tolist() == [20.0] and d.ood.x[0, 0, 0, 0] == 60
    assert sorted([*d.train.y, *d.id.y]) == [1.0, 40.0]


def test_weights_are_in_the_catalogue_and_are_no_dataset(nowhere):
    assert set(data.weight_names()).isdisjoint(data.dataset_names())
    for name in data.weight_names():
        assert data.info(name).license and data.info(name).citation and not data.is_here(name)
    with pytest.raises(DataError, match="farfield data fetch mobilenet_v2"):
        data.weights_file("mobilenet_v2")
    with pytest.raises(UnknownNameError, match="dataset"):
        data.load("mobilenet_v2")
    with pytest.raises(UnknownNameError, match="weights"):
        data.weights_file("protein")
    path = nowhere / "weights" / "mobilenet_v2-b0353104.pth"
    path.parent.mkdir()
    path.write_bytes(b"something else")
    with pytest.raises(InvalidValueError, match="sha256 differs"):
        data.weights_file("mobilenet_v2")


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_random_labels_are_of_the_same_classes_and_say_so(monkeypatch, dtype):
    part = data.Part(np.arange(400.0).reshape(200, 2), np.repeat(np.arange(3, 8), 40).astype(dtype))
    held = data.Dataset(
        "mnist", part, part, data.Part(part.x[:0], part.y[:0]), ("a", "b"), ("c",), "whole", "", ""
    )
    monkeypatch.setattr("farfield.data._load.find", lambda name, forms: None)
    monkeypatch.setitem(data._load._READERS, "mnist", lambda entry, paths, seed: held)
    drawn = data.load("mnist", random_labels=1)
    assert np.array_equal(drawn.train.x, part.x) and drawn.train.y.dtype == dtype
    assert set(drawn.train.y) == {3, 4, 5, 6, 7} and len(drawn.ood) == 0
    assert np.mean(drawn.train.y == part.y) < 0.35 and not np.array_equal(drawn.train.y, drawn.id.y)
    assert "labels drawn at random (seed 1)" in drawn.split and "random" not in data.load("mnist").split
    assert np.array_equal(data.load("mnist", random_labels=1).train.y, drawn.train.y)
    assert not np.array_equal(data.load("mnist", random_labels=2).train.y, drawn.train.y)


def test_numbers_have_no_labels_to_draw():
    with pytest.raises(InvalidValueError, match="targets of sinusoid are numbers, not classes"):
        data.load("sinusoid", random_labels=0)
