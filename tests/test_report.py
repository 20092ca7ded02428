"""The page about a posterior: complete, harmless, and true to its numbers."""

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from PIL import Image

import steingp as sg
from steingp.posterior import Posterior
from steingp.report import write_report

matplotlib.use("Agg")

rng = np.random.default_rng(0)
NAUGHTY = '<script>alert("1")</script> & $cost$'


class Page(HTMLParser):
    """Tags, what they refer to, alternative texts, and the words between."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.refers: list[str] = []
        self.alts: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href"):
                self.refers.append(value or "")
            if name == "alt":
                self.alts.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def write(posterior: Posterior, path: Path, **options: object) -> tuple[Page, str]:
    written = write_report(posterior, path, **options)  # type: ignore[arg-type]
    text = written.read_text()
    return Page(text), text


@pytest.fixture(scope="module")
def fitted() -> Posterior:
    X = pd.DataFrame({NAUGHTY: np.linspace(100.0, 200.0, 25)})
    y = 50.0 + np.sin(X[NAUGHTY] / 15.0) + 0.1 * rng.normal(size=25)
    model = sg.SteinGP((X, y), sg.kernels.Matern52(), standardise=True)
    return sg.fit(model, effective_size=100, explore=False)


def test_a_page_stands_alone_and_is_well_formed(
    fitted: Posterior, tmp_path: Path
) -> None:
    page, text = write(fitted, tmp_path / "page.html", title="Sines & more")
    assert text.startswith("<!doctype html>") and not page.open
    assert page.tags.count("h1") == 1 and "Sines & more" in page.words
    assert page.refers and all(
        r.startswith("data:image/png;base64,") for r in page.refers
    )
    assert "http" not in text.replace("charset", "") and "@import" not in text
    assert 'name="viewport"' in text
    assert len(page.alts) == page.tags.count("img") == 6 and all(page.alts)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html"]


def test_names_of_columns_do_no_harm(fitted: Posterior, tmp_path: Path) -> None:
    page, text = write(
        fitted, tmp_path / "page.html", title=NAUGHTY, target=NAUGHTY,
        facts={NAUGHTY: NAUGHTY},
    )  # fmt: skip
    assert "script" not in page.tags and "<script" not in text
    assert page.words.count(NAUGHTY) >= 6


def test_figures_can_be_looked_at(fitted: Posterior, tmp_path: Path) -> None:
    page, _ = write(fitted, tmp_path / "page.html")
    for source in page.refers:
        image = Image.open(io.BytesIO(base64.b64decode(source.split(",")[1])))
        assert min(image.size) > 250
        # neither blank nor all of one colour
        assert np.asarray(image.convert("L")).std() > 5.0


def test_numbers_are_those_of_the_posterior(fitted: Posterior, tmp_path: Path) -> None:
    page, text = write(fitted, tmp_path / "page.html", target="level")
    for row in fitted.summary().values():
        for value in row.values():
            assert f">{value:.4g}</td>" in text
    found = fitted.log_evidence()
    assert f"{found.log_value:.2f} +- {found.error:.2f}" in page.words
    assert f"{sg.leave_one_out(fitted).total:.2f} +-" in page.words
    assert "25 rows" in page.words and "standardised" in page.words
    X, y = fitted.training_data
    for value in (X.min(), X.max(), y.mean()):
        assert f">{value:.4g}</td>" in text
    assert "Calibration on the training rows" in page.words
    assert "it flatters" in page.words


def test_every_check_stands_with_its_finding(fitted: Posterior, tmp_path: Path) -> None:
    page, text = write(fitted, tmp_path / "page.html")
    verdict = fitted.diagnose()
    assert verdict.line in page.words
    assert ('class="verdict bad"' in text) == (not verdict.trusted)
    for check in verdict.checks:
        assert check.name in page.words and check.finding in page.words


def test_draws_that_cannot_be_trusted_say_so(tmp_path: Path) -> None:
    # five prior draws of two inputs: maps, no run, no evidence
    X = rng.normal(size=(20, 2))
    model = sg.SteinGP((X, X[:, 0]), sg.kernels.SquaredExponential())
    page, text = write(model.posterior(model.sample_prior(5)), tmp_path / "page.html")
    assert 'class="verdict bad"' in text and "Do not trust it" in page.words
    assert 'class="bad-cell">FAILED' in text
    assert "log_evidence() needs the draws of a complete fit" in page.words
    assert "Modes were not looked for" in page.words


def test_modes_are_listed_with_their_masses(fitted: Posterior, tmp_path: Path) -> None:
    from steingp.posterior import Mode

    half = np.arange(fitted.num_draws // 2)
    rest = np.arange(len(half), fitted.num_draws)
    two = fitted.subset(np.arange(fitted.num_draws))
    two.modes = [Mode(0.625, half, fitted.log_evidence()), Mode(0.375, rest)]
    page, _ = write(two, tmp_path / "page.html")
    table = page.words[page.words.index("Parts of the posterior that lie apart") :]
    assert re.search(r"0\.625.*0\.375", table, re.DOTALL)
    assert f"{fitted.log_evidence().log_value:.2f} +-" in table


def test_counts_are_predicted_with_their_exposure(tmp_path: Path) -> None:
    X = np.linspace(0, 1, 15)[:, None]
    exposure = np.linspace(1.0, 40.0, 15)
    noise = sg.likelihoods.Poisson(exposure=exposure)
    y = rng.poisson(2.0 * exposure).astype(float)
    model = sg.SteinGP((X, y), sg.kernels.SquaredExponential(), noise)
    posterior = model.posterior(model.sample_prior(5))
    seen: list[np.ndarray] = []
    predict = posterior.predict_y

    def spy(*arguments: object, **options: object) -> object:
        seen.append(np.asarray(options.get("per_row")))
        return predict(*arguments, **options)  # type: ignore[arg-type]

    posterior.predict_y = spy  # type: ignore[method-assign]
    write(posterior, tmp_path / "page.html")
    assert any(np.array_equal(row, exposure) for row in seen if row.shape == (15,))


def test_a_folder_that_is_not_there(fitted: Posterior, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        write_report(fitted, tmp_path / "no" / "page.html")
