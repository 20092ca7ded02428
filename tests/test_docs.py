"""The README's code runs, block after block, as a reader would paste it."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.user_precision
def test_readme() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 3
    code = "\n".join(blocks)
    for long, short in (
        ("sg.fit(model, seed=0)", "sg.fit(model, seed=0, effective_size=20)"),
        ("iterations=1000", "iterations=20"),
    ):
        assert long in code
        code = code.replace(long, short)
    names: dict = {}
    exec(compile(code, str(README), "exec"), names)
    assert names["posterior_samples"].shape == (25, 500)


def test_every_public_name_has_an_example() -> None:
    import inspect

    import steingp as sg

    modules = (sg.kernels, sg.likelihoods, sg.means, sg.inducing, sg.metrics, sg.stein)
    things = {f"sg.{n}": t for n, t in vars(sg).items() if inspect.isclass(t)
              or inspect.isfunction(t)}  # fmt: skip
    for module in modules:
        for name, thing in vars(module).items():
            public = not name.startswith("_") and (
                inspect.isclass(thing) or inspect.isfunction(thing)
            )
            if public and getattr(thing, "__module__", "").startswith(module.__name__):
                things[f"{module.__name__}.{name}"] = thing
    internal = {  # bases for authors and parts of the machinery
        "Kernel", "Leaf", "Isotropic", "Sum", "Product", "Mean", "Likelihood",
        "Bandwidth", "SteinKernel", "Radial", "Terms", "plain_terms", "phi",
        "squared_ksd", "at_start",
    }  # fmt: skip
    lacking = [
        name
        for name, thing in things.items()
        if name.split(".")[-1] not in internal and ">>>" not in (thing.__doc__ or "")
    ]
    assert not lacking
