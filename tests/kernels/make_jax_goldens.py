"""Write the goldens of the archived JAX library.

    python tests/kernels/make_jax_goldens.py --jax-python <interpreter with jax==0.5.3 and neural-tangents>

Networks it supports: norms before an activation only, no activations but these. Its ntk parametrization is ours, with
plain activations (no factor √c).
"""

import argparse
import json
import math
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
GOLDENS = HERE / "goldens" / "jax.json"


def networks() -> dict[str, list[list[object]]]:
    """Layers by name."""
    found: dict[str, list[list[object]]] = {}
    activations = {
        "relu": ["relu"],
        "leaky": ["leaky_relu", 0.1],
        "abs": ["abs"],
        "erf": ["erf"],
        "gelu": ["gelu"],
    }
    for name, unit in activations.items():
        for place, norms in {"none": (), "first": (0,), "second": (1,), "every": (0, 1, 2)}.items():
            layers: list[list[object]] = []
            for k in range(3):
                layers += [["dense", 1.5, 0.1], *([["layer_norm"]] if k in norms else []), unit]
            found[f"{name}-{place}"] = [*layers, ["dense", 0.8, 0.05]]
    block: list[list[object]] = [["layer_norm"], ["relu"], ["dense", 1.2, 0.1]]
    found["deep"] = [["dense", 2.0, 0.01], ["layer_norm"], ["relu"]] * 10 + [["dense", 2.0, 0.01]]
    found["no-bias"] = [["dense", 2.0, 0.0], ["relu"]] * 3 + [["dense", 1.0, 0.0]]
    ends: list[list[object]] = [["relu"], ["dense", 1.0, 0.1]]
    found["residual"] = [["dense", 1.0, 0.1], ["residual", block], ["residual", block], ["layer_norm"], *ends]
    found["residual-open"] = [["dense", 1.0, 0.1], ["residual", block[1:]], *ends]
    return found


def inputs() -> list[list[float]]:
    """Six rows of different lengths: two of them near, two nearly opposite."""
    rows = [[math.sin(1 + 3 * i + j * j) * (1 + i) / 2 for j in range(4)] for i in range(4)]
    rows.append([v + 0.02 for v in rows[0]])
    rows.append([-v + 0.05 for v in rows[1]])
    return rows


def main() -> None:
    """Run the library and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jax-python", required=True)
    interpreter = parser.parse_args().jax_python
    job = {"networks": list(networks().values()), "inputs": inputs()}
    script = HERE.parents[1] / "benchmarks" / "_jax_kernels.py"
    done = subprocess.run(
        [interpreter, str(script)], input=json.dumps(job), capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout)
    cases = [
        {"name": name, "layers": layers, **values}
        for (name, layers), values in zip(networks().items(), answer["values"], strict=True)
    ]
    GOLDENS.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case) for case in cases)
    head = json.dumps({"versions": answer["versions"], "inputs": inputs()})[1:-1]
    GOLDENS.write_text(f'{{{head},\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
