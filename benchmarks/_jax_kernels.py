"""Kernels of the archived JAX library, in a process of its own: JSON in, JSON out.

    <interpreter with jax 0.5.3 and neural-tangents> benchmarks/_jax_kernels.py < job.json

Nothing of farfield is imported. A job has ``networks`` (lists of layers, see ``serial``) with ``inputs``, whose
kernels are returned in float64; and ``timings`` (layers, n, d, dtype, repeats), measured in CPU-seconds of this
process after one run that compiles.
"""

import json
import math
import sys
import time


def serial(layers):
    """["dense", σ_w², σ_b²], ["layer_norm"], ["leaky_relu", slope], ["residual", [...]], or an activation by name."""
    from neural_tangents import stax

    built = []
    for name, *arguments in layers:
        if name == "dense":
            weight_var, bias_var = arguments
            # The width plays no part in the kernel.
            built.append(stax.Dense(8, math.sqrt(weight_var), math.sqrt(bias_var) if bias_var else None))
        elif name == "layer_norm":
            built.append(stax.LayerNorm())
        elif name == "leaky_relu":
            built.append(stax.LeakyRelu(*arguments))
        elif name == "residual":
            built.append(stax.FanOut(2))
            built.append(stax.parallel(stax.Identity(), serial(*arguments)))
            built.append(stax.FanInSum())
        else:
            built.append({"relu": stax.Relu, "abs": stax.Abs, "erf": stax.Erf, "gelu": stax.Gelu}[name]())
    return stax.serial(*built)


def resident(name):
    """VmRSS, the memory resident now, or VmHWM, the most of it since the last reset, in bytes (Linux)."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(name))


def reset():
    """Forget the most there was: it may even be that of the process this one was started from."""
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")


def values(layers, x):
    """Both kernels of one set of inputs, as lists."""
    kernel = serial(layers)[2]
    found = kernel(x, None, ("nngp", "ntk"))
    return {"nngp": found.nngp.tolist(), "ntk": found.ntk.tolist()}


def timing(layers, n, d, dtype, repeats):
    """CPU-seconds of each run, and bytes beyond what was resident before the first."""
    import jax
    import jax.numpy as np

    kernel = jax.jit(serial(layers)[2], static_argnums=(2,))
    x = jax.random.normal(jax.random.PRNGKey(0), (n, d), dtype=dtype)
    np.zeros((4, 4)).block_until_ready()
    reset()
    before = resident("VmRSS")
    kernel(x, None, "ntk").block_until_ready()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        kernel(x, None, "ntk").block_until_ready()
        seconds.append(time.process_time() - start)
    return {"cpu_seconds": seconds, "bytes": resident("VmHWM") - before}


def main():
    """Do the job on stdin."""
    job = json.load(sys.stdin)
    import jax

    # With it on, float32 inputs are carried through in float64: only where that is wanted.
    double = job.get("networks") or any(one["dtype"] == "float64" for one in job.get("timings", []))
    jax.config.update("jax_enable_x64", bool(double))
    import jax.numpy as np
    import neural_tangents

    out = {
        "versions": {"jax": jax.__version__, "neural_tangents": neural_tangents.__version__},
        "values": [values(layers, np.array(job["inputs"])) for layers in job.get("networks", [])],
        "timings": [timing(**one) for one in job.get("timings", [])],
    }
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
