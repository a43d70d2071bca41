"""A folder of checkpoints whose verdicts are known by construction, some of them broken on purpose."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

MODELS = '''
import ctypes, os, time
import torch
from torch import nn


class Residual(nn.Module):
    """The norm is on the branch alone: the skip escapes."""

    def __init__(self, d, width, act):
        super().__init__()
        self.embed, self.norm, self.mix = nn.Linear(d, width), nn.LayerNorm(width), nn.Linear(width, width)
        self.act, self.head = act, nn.Linear(width, 1)

    def forward(self, x):
        h = self.embed(x)
        return self.head(h + self.act(self.mix(self.norm(h))))


class Beside(nn.Module):
    """Half of the features pass a norm, the other half go round it."""

    def __init__(self, d, width, act):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(d, width), nn.LayerNorm(width), nn.Linear(d, width)
        self.act, self.head = act, nn.Linear(2 * width, 1)

    def forward(self, x):
        return self.head(torch.cat([self.norm(self.a(x)), self.act(self.b(x))], -1))


class Ratio(nn.Module):
    """A denominator that can vanish: not to be decided."""

    def __init__(self, d, width, act):
        super().__init__()
        self.a, self.b = nn.Linear(d, width), nn.Linear(d, width)

    def forward(self, x):
        return self.a(x) / self.b(x)


class Raises(nn.Linear):
    def forward(self, x):
        raise RuntimeError("out of cheese")


def _layers(d, width, act, first=None, last=None, head=None):
    parts = [nn.Linear(d, width), first, act, nn.Linear(width, width), last, act, nn.Linear(width, 2), head]
    return nn.Sequential(*(part for part in parts if part is not None))


KINDS = {  # kind -> (builder of (d, width), is it bounded)
    "plain_relu": (lambda d, w: _layers(d, w, nn.ReLU()), "UNBOUNDED"),
    "plain_gelu": (lambda d, w: _layers(d, w, nn.GELU()), "UNBOUNDED"),
    "plain_silu": (lambda d, w: _layers(d, w, nn.SiLU()), "UNBOUNDED"),
    "leaky": (lambda d, w: _layers(d, w, nn.LeakyReLU()), "UNBOUNDED"),
    "linear": (lambda d, w: nn.Sequential(nn.Linear(d, w), nn.Linear(w, 1)), "UNBOUNDED"),
    "residual": (lambda d, w: Residual(d, w, nn.ReLU()), "UNBOUNDED"),
    "beside": (lambda d, w: Beside(d, w, nn.ReLU()), "UNBOUNDED"),
    "tanh": (lambda d, w: _layers(d, w, nn.Tanh()), "BOUNDED"),
    "sigmoid": (lambda d, w: _layers(d, w, nn.Sigmoid()), "BOUNDED"),
    "norm_first": (lambda d, w: _layers(d, w, nn.ReLU(), first=nn.LayerNorm(w)), "BOUNDED"),
    "norm_last": (lambda d, w: _layers(d, w, nn.GELU(), last=nn.LayerNorm(w)), "BOUNDED"),
    "rms": (lambda d, w: _layers(d, w, nn.SiLU(), first=nn.RMSNorm(w, eps=1e-6)), "BOUNDED"),
    "softmax": (lambda d, w: _layers(d, w, nn.ReLU(), head=nn.Softmax(-1)), "BOUNDED"),
    "clamped": (lambda d, w: _layers(d, w, nn.ReLU(), head=nn.Hardtanh()), "BOUNDED"),
    "ratio": (lambda d, w: Ratio(d, w, None), "UNKNOWN"),
}


def make(kind, d, width):
    return KINDS[kind][0](d, width)


def raises():
    return Raises(4, 1)


def hangs():
    time.sleep(3600)


def crashes():
    ctypes.string_at(0)


def leaves():
    os._exit(7)


def forks():
    if os.fork() == 0:
        time.sleep(3600)  # and holds the pipe of its parent open
    os._exit(3)


def eats():
    return [torch.ones(2**24) for _ in range(10**6)]


def quits():
    raise SystemExit("no")


def single():
    torch.set_default_dtype(torch.float64)  # and does not put it back
    return nn.Linear(4, 1)
'''
"""The module that builds them, as a user would have one."""
SIZES = ((3, 8), (4, 16), (6, 12))


class Touch:
    """A pickle that runs code when it is loaded as pickles are."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def definitions() -> dict[str, Any]:
    """The names of the module above."""
    found: dict[str, Any] = {"__name__": "zoo_models"}
    exec(MODELS, found)
    return found


def randomize(parameters: dict[str, Tensor], generator: torch.Generator) -> None:
    """Weights of an initialization, other ones for every file; gains of norms stay near one."""
    with torch.no_grad():
        for value in parameters.values():
            if value.ndim > 1:
                value.normal_(0.0, value.shape[-1] ** -0.5, generator=generator)
            else:
                value.uniform_(0.5, 1.5, generator=generator)


# ------------------------------------------------------------------ broken ones

Rows = list[dict[str, Any]]


def _truncated(folder: Path, good: bytes) -> dict[str, Any]:
    (folder / "truncated.pt2").write_bytes(good[: len(good) // 2])
    return {"path": "truncated.pt2"}


def _noise(folder: Path, good: bytes) -> dict[str, Any]:
    noise = torch.randint(0, 256, (len(good),), generator=torch.Generator().manual_seed(7))
    (folder / "noise.pt2").write_bytes(bytes(noise.tolist()))
    return {"path": "noise.pt2"}


def _whole_module(folder: Path, good: bytes) -> dict[str, Any]:
    torch.save(nn.Linear(4, 1), folder / "whole_module.pt")
    return {"path": "whole_module.pt", "inputs": "1x4", "builder": "zoo_models:raises"}


def _malicious(folder: Path, good: bytes) -> dict[str, Any]:
    (folder / "malicious.pt").write_bytes(pickle.dumps({"weight": Touch(folder / "TOUCHED")}, protocol=2))
    return {"path": "malicious.pt", "inputs": "1x4", "builder": "zoo_models:raises"}


def _wrong_shapes(folder: Path, good: bytes) -> dict[str, Any]:
    save_file({"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}, folder / "wrong_shapes.safetensors")
    return {"path": "wrong_shapes.safetensors", "inputs": "1x4", "builder": "zoo_models:raises"}


def _missing_class(folder: Path, good: bytes) -> dict[str, Any]:
    save_file({"weight": torch.zeros(1, 4)}, folder / "missing_class.safetensors")
    return {"path": "missing_class.safetensors", "inputs": "1x4", "builder": "zoo_models:Gone"}


def _raises(folder: Path, good: bytes) -> dict[str, Any]:
    save_file({"weight": torch.zeros(1, 4), "bias": torch.zeros(1)}, folder / "raises.safetensors")
    return {"path": "raises.safetensors", "inputs": "1x4", "builder": "zoo_models:raises"}


def _nan(folder: Path, good: bytes) -> dict[str, Any]:
    save_file(
        {"weight": torch.full((1, 4), float("nan")), "bias": torch.zeros(1)}, folder / "nan.safetensors"
    )
    return {"path": "nan.safetensors", "inputs": "1x4", "builder": "zoo_models:raises"}


def _crashes(folder: Path, good: bytes) -> dict[str, Any]:
    torch.save({"weight": torch.zeros(1, 4)}, folder / "crashes.pth")
    return {"path": "crashes.pth", "inputs": "1x4", "builder": "zoo_models:crashes"}


def _hangs(folder: Path, good: bytes) -> dict[str, Any]:
    torch.save({"weight": torch.zeros(1, 4)}, folder / "hangs.ckpt")
    return {"path": "hangs.ckpt", "inputs": "1x4", "builder": "zoo_models:hangs"}


def _pipe(folder: Path, good: bytes) -> dict[str, Any]:
    os.mkfifo(folder / "pipe.pt2")
    return {"path": "pipe.pt2"}


def _device(folder: Path, good: bytes) -> dict[str, Any]:
    (folder / "device.pt2").symlink_to("/dev/zero")
    return {"path": "device.pt2"}


def _forks(folder: Path, good: bytes) -> dict[str, Any]:
    save_file({"weight": torch.zeros(1, 4)}, folder / "forks.safetensors")
    return {"path": "forks.safetensors", "inputs": "1x4", "builder": "zoo_models:forks"}


def _eats(folder: Path, good: bytes) -> dict[str, Any]:
    save_file({"weight": torch.zeros(1, 4)}, folder / "eats.safetensors")
    return {"path": "eats.safetensors", "inputs": "1x4", "builder": "zoo_models:eats"}


def _pickled(folder: Path, good: bytes) -> dict[str, Any]:
    """A program whose first weight is a pickle that runs code."""
    with zipfile.ZipFile(io.BytesIO(good)) as old, zipfile.ZipFile(folder / "pickled.pt2", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("model_weights_config.json"):
                found = json.loads(content)
                found["config"][next(iter(found["config"]))]["use_pickle"] = True
                content = json.dumps(found).encode()
            elif name.endswith("weights/weight_0"):
                content = pickle.dumps(Touch(folder / "TOUCHED"))
            new.writestr(name, content)
    return {"path": "pickled.pt2"}


BROKEN: dict[str, tuple[Callable[[Path, bytes], dict[str, Any]], str, str]] = {
    "truncated": (_truncated, "CheckpointError", "zip"),
    "malicious": (_malicious, "CheckpointError", "weights_only=True"),
    "wrong_shapes": (_wrong_shapes, "CheckpointError", "size mismatch"),
    "missing_class": (_missing_class, "InvalidValueError", "no attribute 'Gone'"),
    "raises": (_raises, "CaptureError", "out of cheese"),
    "crashes": (_crashes, "WorkerDied", "SIGSEGV"),
    "noise": (_noise, "CheckpointError", "zip"),
    "whole_module": (_whole_module, "CheckpointError", "weights_only=True"),
    "nan": (_nan, "CheckpointError", "NaN"),
    "hangs": (_hangs, "TimeLimit", "limit"),
}
"""kind → (who writes it, the error's type, a word of its message)."""
HOSTILE = BROKEN | {
    "pipe": (_pipe, "UnsafeFileError", "named pipe"),
    "device": (_device, "UnsafeFileError", "device"),
    "forks": (_forks, "WorkerDied", "exit code 3"),
    "eats": (_eats, "MemoryError", "limit"),
    "pickled": (_pickled, "CheckpointError", "pickle"),
}
"""Five more, that want to hold the others up or to run code."""


def write_checkpoints(
    folder: Path, count: int, broken: list[str], *, built: float = 0.3, seed: int = 0
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Write ``count`` checkpoints, a registry of them and the module that builds some.

    Returns the expected verdict of every sound one, and error and word of every broken one, by path. Of every hundred
    sound ones, ``100 * built`` hold weights only (two thirds safetensors, one third pickled state dicts).
    """
    names = definitions()
    kinds = names["KINDS"]
    (folder / "zoo_models.py").write_text(MODELS)
    files = folder / "models"
    files.mkdir()
    generator = torch.Generator().manual_seed(seed)
    expected: dict[str, str] = {}
    rows: Rows = []
    exported: dict[tuple[Any, ...], Any] = {}
    sound = count - len(broken)
    for i in range(sound):
        kind = list(kinds)[i % len(kinds)]
        d, width = SIZES[i // len(kinds) % len(SIZES)]
        row: dict[str, Any] = {}
        if (i * 7919 % 100) / 100.0 >= built:
            path = f"{kind}_{i:04d}.pt2"
            key = (kind, d, width)
            if key not in exported:
                model = names["make"](*key).eval()
                exported[key] = torch.export.export(model, (torch.zeros(1, d),))
            randomize(dict(exported[key].named_parameters()), generator)
            torch.export.save(exported[key], files / path)
        else:
            path = f"{kind}_{i:04d}.{'safetensors' if i % 3 else 'pt'}"
            model = names["make"](kind, d, width)
            randomize(dict(model.named_parameters()), generator)
            if i % 3:
                save_file(model.state_dict(), files / path)
            else:
                torch.save({"epoch": 3, "state_dict": model.state_dict()}, files / path)
            arguments = json.dumps({"kind": kind, "d": d, "width": width})
            row = {"inputs": f"1x{d}", "builder": "zoo_models:make", "arguments": arguments}
        expected[path] = kinds[kind][1]
        rows.append({"path": path, **row})
    good = (files / next(path for path in expected if path.endswith(".pt2"))).read_bytes()
    failures: dict[str, tuple[str, str]] = {}
    uses: Counter[str] = Counter()
    for place, name in enumerate(broken):
        write, error, word = HOSTILE[name]
        within = f"broken{uses[name]}/" if uses[name] else ""  # the second of a kind has a folder of its own
        uses[name] += 1
        (files / within).mkdir(exist_ok=True)
        row = write(files / within, good)
        row["path"] = within + row["path"]
        failures[row["path"]] = (error, word)
        rows.insert((place * 997) % (len(rows) + 1), row)  # among the others, not after them
    with (files / "registry.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    return expected, failures


def disagreements(
    rows: Iterable[Mapping[str, Any]], expected: Mapping[str, str], failures: Mapping[str, tuple[str, str]]
) -> list[str]:
    """Paths whose row says otherwise than they were built, and paths that have no row or several."""
    wrong = []
    seen: Counter[str] = Counter()
    for row in rows:
        path = row["path"]
        seen[path] += 1
        if path in failures:
            error, word = failures[path]
            right = row["verdict"] is None and row["error"] == error and word in row["message"]
        else:
            right = row["verdict"] == expected.get(path) and row["error"] is None and bool(row["reason"])
        if not right:
            wrong.append(path)
    return wrong + [path for path in {*expected, *failures} if seen[path] != 1]
