"""How much spread plain SVGD keeps: variance on N(0, I_d), truth 1.

    python benchmarks/svgd_spread.py

J = 20 particles from N(0, I), RBF kernel, median bandwidth, Adam 0.05, 3000 steps, five
seeds. Writes results/svgd_spread.json and prints it.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import steingp as sg
from steingp import svgd

RESULTS = Path(__file__).parent.parent / "results" / "svgd_spread.json"


def spread(
    d: int, num_particles: int = 20, num_steps: int = 3000, seed: int = 0
) -> float:
    """Mean marginal variance of the particles."""

    def log_density(x: jax.Array) -> jax.Array:
        return -0.5 * jnp.sum(x**2)

    start = np.random.default_rng(seed).normal(size=(num_particles, d))
    state, _ = svgd.run(log_density, svgd.init(start), num_steps, progress=False)
    return float(np.mean(state.particles.var(axis=0)))


def main() -> None:
    lines = []
    for d in (1, 2, 5, 10, 20, 100):
        values = [spread(d, seed=seed) for seed in range(5)]
        lines.append(
            {"d": d, "particles": 20, "variance": np.mean(values), "sd": np.std(values)}
        )
        print(f"d = {d:3}: variance {np.mean(values):.3f} +- {np.std(values):.3f}")
    about = {"steps": 3000, "jax": jax.__version__, "version": sg.__version__}
    RESULTS.write_text(json.dumps({**about, "results": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
