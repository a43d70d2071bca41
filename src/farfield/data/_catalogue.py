"""What there is: files with their hashes, sources, licenses, citations."""

from __future__ import annotations

from dataclasses import dataclass

from farfield.errors import UnknownNameError

__all__ = ["CATALOGUE", "WEIGHTS", "Entry", "File", "dataset_names", "info", "weight_names"]


@dataclass(frozen=True)
class File:
    """One file: where it lies in a data folder, its hash, and where it comes from.

    Parameters
    ----------
    path
        Below the data folder.
    digest
        ``"sha256:…"`` or ``"md5:…"`` of the file; of what it holds if it is compressed by xz.
    url
        Of the original, if it can be fetched.
    """

    path: str
    digest: str
    url: str | None = None


@dataclass(frozen=True)
class Entry:
    """One dataset of the catalogue, or the weights of a pretrained network.

    Parameters
    ----------
    name, title
        What to ask for, and what it is.
    files
        What it is read from: every item is one file, in any of several forms. Empty for one that is made up.
    rows
        How many there are in all; 0 for weights.
    license, citation
        Whose it is.
    note
        What else to know: what the split is, what can't be fetched.
    """

    name: str
    title: str
    files: tuple[tuple[File, ...], ...]
    rows: int
    license: str
    citation: str
    note: str = ""


_CASP = "sha256:4277cfcb4e91a181746cbc654f001b57951c9e6a80f4f795fdb5c807e0848f40"
_MNIST_SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist"
_TABLES = File(
    "tables/uci_regression_tables.npz",
    "sha256:868a8b409092c8894e71c589da90a38622f6890b554141a0b223e76453881f43",
)
_TABLE_NOTE = (
    "Far side: the top tenth of the rows by the leading feature. One file holds all the tables; it can't be "
    "fetched, set "
    "FARFIELD_DATA to a folder that has it."
)


def _table(name: str, title: str, rows: int, citation: str, terms: str = "CC BY 4.0 (UCI)") -> Entry:
    return Entry(name, title, ((_TABLES,),), rows, terms, citation, _TABLE_NOTE)


_ENTRIES = (
    Entry(
        "protein",
        "UCI Physicochemical Properties of Protein Tertiary Structure: RMSD from nine features",
        (
            (
                File("protein/CASP.csv.xz", _CASP),
                File(
                    "protein/CASP.csv",
                    _CASP,
                    "https://archive.ics.uci.edu/ml/machine-learning-databases/00265/CASP.csv",
                ),
            ),
        ),
        45_730,
        "CC BY 4.0 (UCI)",
        "P. Rana, Physicochemical Properties of Protein Tertiary Structure, UCI Machine Learning Repository, 2013",
        "P1's split: train on a random 90% of the rows with F1 < 20,000, test on the others of those and, "
        "apart, on the rest.",
    ),
    Entry(
        "utkface",
        "UTKFace: age from 23,707 aligned faces, 128×128",
        (
            (
                File(
                    "utkface/utkface_128_webp85.npz",
                    "sha256:d22756e099732702b3b638c0f1c8dcfcddd005305da09dd4c92668d15aa304bb",
                ),
            ),
        ),
        23_707,
        "non-commercial research only",
        "Z. Zhang, Y. Song, H. Qi, Age Progression/Regression by Conditional Adversarial Autoencoder, CVPR 2017",
        "P1's split by ethnicity: train on one label, test on the others apart. Its authors hand it out "
        "themselves: it can't be "
        "fetched, set FARFIELD_DATA to a folder that has it. Faces are for running the experiment, never for "
        "showing.",
    ),
    Entry(
        "cifar10",
        "CIFAR-10: 60,000 color images, 32×32, ten classes",
        (
            (
                File(
                    "cifar10/cifar10_webp_lossless.npz",
                    "sha256:adcaaf758cddbf82744539906a5f2dda49b57c8e416fcaead744f84e35ce8f12",
                ),
                File(
                    "cifar10/cifar-10-binary.tar.gz",
                    "md5:c32a1d4ab5d03f1284b67883e8d87530",
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                ),
            ),
        ),
        60_000,
        "free to use with citation",
        "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        "The official split: 50,000 to train, 10,000 to test.",
    ),
    Entry(
        "mnist",
        "MNIST: 70,000 gray images of digits, 28×28",
        tuple(
            (File(f"mnist/{name}", f"sha256:{digest}", f"{_MNIST_SOURCE}/{name}"),)
            for name, digest in (
                (
                    "train-images-idx3-ubyte.gz",
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                ),
                (
                    "train-labels-idx1-ubyte.gz",
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                ),
                (
                    "t10k-images-idx3-ubyte.gz",
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                ),
                (
                    "t10k-labels-idx1-ubyte.gz",
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ),
            )
        ),
        70_000,
        "CC BY-SA 3.0",
        "Y. LeCun, C. Cortes, C. J. C. Burges, The MNIST database of handwritten digits, 1998",
        "The official split: 60,000 to train, 10,000 to test.",
    ),
    *(
        Entry(
            name,
            f"100 points of y = {formula}, x ∈ [−5, 5]; held out beyond, to ±25",
            (),
            600,
            "none needed",
            "made up, after the toy problems of P1",
            "Noise of standard deviation 0.1 on the training targets; the seed draws points and noise.",
        )
        for name, formula in (("sinusoid", "sin x"), ("linear", "x/2"), ("quadratic", "x²/10"))
    ),
    _table("airfoil", "NASA airfoil self-noise", 1_503, "T. Brooks, D. Pope, M. Marcolini, UCI, 2014"),
    _table("bike_hour", "Bike sharing by the hour", 17_379, "H. Fanaee-T, J. Gama, UCI, 2013"),
    _table("boston", "Boston housing", 506, "D. Harrison, D. Rubinfeld, 1978", "public domain"),
    _table(
        "california", "California housing, 1990 census", 20_640, "R. K. Pace, R. Barry, 1997", "public domain"
    ),
    _table("concrete", "Concrete compressive strength", 1_030, "I.-C. Yeh, UCI, 2007"),
    _table("energy", "Energy efficiency of buildings, two targets", 768, "A. Tsanas, A. Xifara, UCI, 2012"),
    _table(
        "kin8nm",
        "Kinematics of an eight-link arm",
        8_192,
        "DELVE, University of Toronto, 1996",
        "free to use",
    ),
    _table("naval", "Decay of a naval gas turbine, two targets", 11_934, "A. Coraddu et al., UCI, 2014"),
    _table("power", "Combined cycle power plant", 9_568, "P. Tüfekci, H. Kaya, UCI, 2014"),
    _table("wine_red", "Red wine quality", 1_599, "P. Cortez et al., UCI, 2009"),
    _table("yacht", "Yacht hydrodynamics", 308, "J. Gerritsma, R. Onnink, A. Versluis, UCI, 2013"),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}

WEIGHTS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "mobilenet_v2",
            "MobileNetV2 trained on ImageNet: torchvision's weights, IMAGENET1K_V1",
            (
                (
                    File(
                        "weights/mobilenet_v2-b0353104.pth",
                        "sha256:b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
                        "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth",
                    ),
                ),
            ),
            0,
            "BSD-3-Clause",
            "M. Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018",
            "Colors in [0, 1], less ImageNet's mean, over its standard deviation.",
        ),
        Entry(
            "resnet18_tiny",
            "ResNet-18 with a first convolution of stride 1, trained on Tiny-ImageNet",
            (
                (
                    File(
                        "weights/resnet18_s1_tinyimagenet200_fp16.pth",
                        "sha256:322962b18eabfca317ac09dd596c99a61a589b7e0fe5329dce7be0841b2b9476",
                    ),
                ),
            ),
            0,
            "MIT",
            "K. He, X. Zhang, S. Ren, J. Sun, Deep Residual Learning for Image Recognition, CVPR 2016",
            "Half precision; images of 64×64, colors in [−1, 1]. It can't be fetched, set FARFIELD_DATA to a folder "
            "that has it.",
        ),
    )
}


def dataset_names() -> tuple[str, ...]:
    """Every dataset, in the catalogue's order."""
    return tuple(CATALOGUE)


def weight_names() -> tuple[str, ...]:
    """Every pretrained network whose weights are in the catalogue."""
    return tuple(WEIGHTS)


def info(name: str) -> Entry:
    """What the catalogue says of a dataset or of weights: files, license, citation, split.

    Examples
    --------
    >>> info("protein").rows
    45730
    """
    known = {**CATALOGUE, **WEIGHTS}
    if name not in known:
        raise UnknownNameError("dataset", name, known)
    return known[name]
