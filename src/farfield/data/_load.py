"""A dataset by name, read and split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farfield.data._catalogue import CATALOGUE, Entry, info
from farfield.data._files import find
from farfield.data._images import PackedFaces, read_cifar, read_faces, read_idx
from farfield.data._split import Dataset, Part, far_field_split
from farfield.errors import InvalidValueError, UnknownNameError

__all__ = ["load", "packed_faces"]

_NEAR_AREA = 20_000
_COLUMNS = {
    "bike_hour": [
        "instant",
        "season",
        "yr",
        "mnth",
        "hr",
        "holiday",
        "weekday",
        "workingday",
        "weathersit",
        "temp",
        "atemp",
        "hum",
        "windspeed",
        "casual",
        "registered",
        "cnt",
    ],
    "california": [
        "longitude",
        "latitude",
        "housing_median_age",
        "total_rooms",
        "total_bedrooms",
        "population",
        "households",
        "median_income",
        "ocean_proximity",
        "median_house_value",
    ],
    "power": ["AT", "V", "AP", "RH", "PE"],
}
_TARGETS = {"energy": 2, "naval": 2}
_LEFT_OUT = {"bike_hour": ("instant", "casual", "registered")}
"""Columns that number the rows or add up to the target."""


def load(name: str, *, seed: int = 0, random_labels: int | None = None) -> Dataset:
    """A dataset, split into a training part, a held-out part from the same region and one from elsewhere.

    Nothing is scaled. Images come as they are, uint8; tables as float64. Files are found as
    :func:`farfield.data.fetch` describes and never fetched here.

    Parameters
    ----------
    name
        One of :func:`dataset_names`.
    seed
        Of the random part of the split; the official splits of images have none.
    random_labels
        A seed: every label is drawn anew, uniformly from the classes of the training part, as P3 does with CIFAR-10
        and MNIST. Nothing but memory fits them.

    Raises
    ------
    DataError
        If a file is missing: where it was looked for, and how to get it.
    InvalidValueError
        If random labels are asked for where targets are numbers, not classes.

    Examples
    --------
    >>> toy = load("sinusoid", seed=1)
    >>> toy.train.x.shape, toy.ood.x.shape
    ((100, 1), (400, 1))
    """
    if name not in CATALOGUE:
        raise UnknownNameError("dataset", name, CATALOGUE)
    entry = info(name)
    paths = tuple(find(name, forms) for forms in entry.files)
    reader = _READERS.get(name, _table)
    found = reader(entry, paths, seed)
    return found if random_labels is None else _relabeled(found, random_labels)


def _relabeled(data: Dataset, seed: int) -> Dataset:
    labels = data.train.y
    if labels.dtype.kind not in "iub":
        raise InvalidValueError(
            f"The targets of {data.name} are numbers, not classes: there are no labels to draw. Data with classes "
            "are mnist and cifar10."
        )
    classes, draw = np.unique(labels), np.random.default_rng([seed, 17])
    train, near, far = (
        replace(p, y=draw.choice(classes, p.y.shape)) for p in (data.train, data.id, data.ood)
    )
    split = f"{data.split}; labels drawn at random (seed {seed})"
    return replace(data, train=train, id=near, ood=far, split=split)


def _dataset(
    entry: Entry,
    parts: tuple[Part, Part, Part],
    features: tuple[str, ...],
    targets: tuple[str, ...],
    split: str,
) -> Dataset:
    return Dataset(entry.name, *parts, features, targets, split, entry.license, entry.citation)


def _protein(entry: Entry, paths: tuple[Path, ...], seed: int) -> Dataset:
    table = np.loadtxt(paths[0], delimiter=",", skiprows=1)  # unpacks .xz itself
    x, y = table[:, 1:], table[:, 0]
    parts = far_field_split(x, y, far=x[:, 0] >= _NEAR_AREA, share=0.9, seed=seed)
    split = f"a random 90% of the rows with F1 < {_NEAR_AREA:,} (seed {seed}); the other 10%; the rest"
    return _dataset(entry, parts, tuple(f"F{k}" for k in range(1, 10)), ("RMSD",), split)


def _table(entry: Entry, paths: tuple[Path, ...], seed: int) -> Dataset:
    with np.load(paths[0]) as tables:
        table = np.asarray(tables[entry.name], dtype=np.float64)
    width = table.shape[1]
    names = _COLUMNS.get(entry.name) or [f"x{k}" for k in range(width)]
    count = _TARGETS.get(entry.name, 1)
    keep = [k for k in range(width - count) if names[k] not in _LEFT_OUT.get(entry.name, ())]
    rows = ~np.isnan(table).any(1)
    x, y = table[rows][:, keep], table[rows][:, -count:]
    y = y[:, 0] if count == 1 else y
    lead = _leading(x, y)
    far = x[:, lead] > np.quantile(x[:, lead], 0.9)
    parts = far_field_split(x, y, far=far, share=0.9, seed=seed)
    features = tuple(names[k] for k in keep)
    targets = (
        tuple(names[width - count :]) if entry.name in _COLUMNS else tuple(f"y{k}" for k in range(count))
    )
    split = (
        f"rows above the 0.9-quantile of {features[lead]}, the feature most correlated with the target, apart; "
        f"a random 90% of the "
        f"others (seed {seed}); the other 10%"
    )
    return _dataset(entry, parts, features, targets, split)


def _leading(x: NDArray[np.float64], y: NDArray[np.float64]) -> int:
    """The feature most correlated with the (first) target, among those with a tail to hold out."""
    target = y if y.ndim == 1 else y[:, 0]
    best, lead = -1.0, 0
    for k in range(x.shape[1]):
        column = x[:, k]
        share = float((column > np.quantile(column, 0.9)).mean())
        if column.std() == 0 or not 0.02 <= share <= 0.2:
            continue
        strength = abs(float(np.corrcoef(column, target)[0, 1]))
        if strength > best:
            best, lead = strength, k
    return lead


def _toy(function: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Callable[..., Dataset]:
    def make(entry: Entry, paths: tuple[Path, ...], seed: int) -> Dataset:
        draw = np.random.default_rng(seed)
        near = np.sort(draw.uniform(-5.0, 5.0, 100))
        noisy = function(near) + 0.1 * draw.standard_normal(100)
        inside = np.linspace(-5.0, 5.0, 100)
        outside = np.concatenate([np.linspace(-25.0, -5.0, 201)[:-1], np.linspace(5.0, 25.0, 201)[1:]])
        parts = (
            Part(near[:, None], noisy),
            Part(inside[:, None], function(inside)),
            Part(outside[:, None], function(outside)),
        )
        split = f"100 points in [−5, 5] with noise 0.1 (seed {seed}); a grid there; a grid beyond, to ±25"
        return _dataset(entry, parts, ("x",), ("y",), split)

    return make


def _mnist(entry: Entry, paths: tuple[Path, ...], seed: int) -> Dataset:
    images, labels, test_images, test_labels = (read_idx(path) for path in paths)
    return _official(entry, (images, labels), (test_images, test_labels))


def _cifar(entry: Entry, paths: tuple[Path, ...], seed: int) -> Dataset:
    images, labels = read_cifar(paths[0])
    return _official(entry, (images[:50_000], labels[:50_000]), (images[50_000:], labels[50_000:]))


def _official(
    entry: Entry,
    train: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    test: tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> Dataset:
    def part(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> Part:
        return Part(x, y.astype(np.int64))

    parts = part(*train), part(*test), part(test[0][:0], test[1][:0])
    return _dataset(entry, parts, ("pixels",), ("class",), "the official training and test sets")


def packed_faces() -> PackedFaces:
    """UTKFace without unpacking its images: ages, ethnicity labels, and images row by row.

    For work that takes the images a batch at a time and splits the rows itself; :func:`load` unpacks all of them.

    Raises
    ------
    DataError
        If the file is missing: where it was looked for, and how to get it.
    """
    (forms,) = info("utkface").files
    return read_faces(find("utkface", forms))


def _faces(entry: Entry, paths: tuple[Path, ...], seed: int) -> Dataset:
    faces = read_faces(paths[0])
    rows = np.arange(len(faces))
    # Split by number first: unpacked, the images would be in memory twice.
    parts = far_field_split(rows, faces.age.astype(np.float64), far=faces.held_out(), share=0.9, seed=seed)
    train, near, ood = (Part(faces.images(part.x.astype(np.int64)), part.y) for part in parts)
    split = (
        f"ethnicity labels 0 to 3 to train (a random 90%, seed {seed}) and to test; label 4, Others, apart"
    )
    return _dataset(entry, (train, near, ood), ("pixels",), ("age",), split)


_READERS: dict[str, Callable[[Entry, tuple[Path, ...], int], Dataset]] = {
    "protein": _protein,
    "mnist": _mnist,
    "cifar10": _cifar,
    "utkface": _faces,
    "sinusoid": _toy(np.sin),
    "linear": _toy(lambda x: x / 2.0),
    "quadratic": _toy(lambda x: x * x / 10.0),
}
