"""Tables and figures of the air-quality study, from its lines."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from steingp.experiments import paper_numbers
from steingp.experiments.air_quality import (
    BOX,
    FILES,
    LOCKDOWN,
    METHODS,
    MIDLANDS,
    map_points,
    table,
)
from steingp.experiments.datasets import data_folder
from steingp.experiments.uci_tables import Cell, plus_minus

Line = dict[str, Any]
_OUTLINES = {
    "uk": ("outline_gbr_50m", "outline_irl_50m"),
    "netherlands": ("outline_nld_50m",),
}


def score_table(lines: list[Line], name: str) -> str:
    """Random splits of one set: mean +- standard error, and the paper's.

    Seconds are of one machine, that which made most of the fits, and of fits that did not
    share its GPU, as the `note` of a line says.
    """
    machines = sorted(d["device"] for d in lines if d["set"] == name and "device" in d)
    machine = max(machines, key=machines.count, default=None)
    rows = [f"{'':16s}{'RMSE':>16s}{'paper':>14s}{'log density':>18s}{'paper':>16s}"
            f"{'in 90 %':>9s}{'seconds':>9s}{'splits':>8s}"]  # fmt: skip
    for method in METHODS:
        own = [
            d for d in lines
            if d["set"] == name and d["method"] == method and d["split"] != "midlands"
            and "error" not in d
        ]  # fmt: skip
        if not own:
            continue
        rmse, score, cover = (
            Cell({d["split"]: d[what] for d in own})
            for what in ("rmse", "log_density", "coverage90")
        )
        seconds = [
            d["seconds"] - d["compile_seconds"]
            for d in own
            if d.get("device") == machine
            and not d.get("note", "").startswith("on a GPU beside")
        ]
        paper = paper_numbers.AIR_QUALITY.get(method) if name == "uk" else None
        theirs = (
            [f"{m:.2f} +-{s:.2f}" for m, s in paper.values()] if paper else ["", ""]
        )
        rows.append(
            f"{method:16s}{plus_minus(rmse):>16s}{theirs[0]:>14s}"
            f"{plus_minus(score):>18s}{theirs[1]:>16s}"
            f"{100 * cover.mean:8.0f}%"
            f"{f'{np.mean(seconds):.1f}' if seconds else '-':>9s}{len(own):8d}"
        )
    return "\n".join(rows)


def midlands_table(lines: list[Line]) -> str:
    """The stations of the midlands, held out; and the variance of f there and elsewhere."""
    rows = [f"{'':16s}{'RMSE':>8s}{'paper':>8s}{'log density':>13s}{'paper':>8s}"
            f"{'in 90 %':>9s}{'variance of f inside / outside':>34s}"]  # fmt: skip
    for line in _of_midlands(lines):
        paper = paper_numbers.AIR_QUALITY_MIDLANDS.get(line["method"], {})
        inside, outside = _variances(line)
        shown = [
            f"{paper[k]:.2f}" if k in paper else "" for k in ("rmse", "log_density")
        ]
        rows.append(
            f"{line['method']:16s}{line['rmse']:8.3f}{shown[0]:>8s}"
            f"{line['log_density']:13.3f}{shown[1]:>8s}{100 * line['coverage90']:8.0f}%"
            f"{f'{inside:.3f} / {outside:.3f} = {inside / outside:.2f}':>34s}"
        )
    return "\n".join(rows)


def _of_midlands(lines: list[Line]) -> list[Line]:
    own = {
        d["method"]: d for d in lines if d["split"] == "midlands" and "error" not in d
    }
    return [own[m] for m in METHODS if m in own]


def _variances(line: Line) -> tuple[float, float]:
    """Mean variance of f in the box, and over land outside of it."""
    lon, lat = np.meshgrid(*_points_of(line))
    (west, south), (east, north) = MIDLANDS
    inside = (lon > west) & (lon < east) & (lat > south) & (lat < north)
    land = _on_land(line, _OUTLINES[line["set"]][:1])  # not Ireland's
    variance = np.reshape(line["map"]["variance"], lon.shape)
    return float(variance[inside].mean()), float(variance[land & ~inside].mean())


def in_words(lines: list[Line]) -> str:
    """What the command prints at the end."""
    parts = [
        f"failed: {d['set']} split {d['split']} {d['method']}: {d['error']}"
        for d in lines
        if "error" in d
    ]
    for name in FILES:
        if any(d["set"] == name and d["split"] != "midlands" for d in lines):
            units = [d["unit"] for d in lines if d["set"] == name and "unit" in d]
            if not units:
                continue
            unit = units[0]
            parts.append(
                f"{name}, random splits, in units of the target's sd (about {unit:.1f} "
                f"micrograms per cubic metre)\n{score_table(lines, name)}"
            )
    if _of_midlands(lines):
        parts.append(f"uk, stations of the midlands held out\n{midlands_table(lines)}")
    return "\n\n".join(parts)


# --- figures ----------------------------------------------------------------------------


def outline(name: str, files: tuple[str, ...] | None = None) -> list[np.ndarray]:
    """Coastlines: rings of longitude and latitude; none, where the files are not there."""
    rings = []
    for file in _OUTLINES[name] if files is None else files:
        path = data_folder() / "air_quality" / f"{file}.geojson"
        if path.is_file():
            shape = json.loads(path.read_text())["geometry"]
            many = shape["coordinates"]
            for polygon in many if shape["type"] == "MultiPolygon" else [many]:
                rings += [np.asarray(ring) for ring in polygon]
    return rings


def _points_of(line: Line) -> tuple[np.ndarray, np.ndarray]:
    """Longitudes and latitudes of a line's map."""
    return map_points(line["set"], line["map"].get("step", 0.2))


def _on_land(line: Line, files: tuple[str, ...] | None = None) -> np.ndarray:
    """Which points of a map lie within a coastline; all, where none is known."""
    from matplotlib.path import Path as Outline

    lon, lat = np.meshgrid(*_points_of(line))
    points = np.stack([lon.ravel(), lat.ravel()], axis=1)
    rings = outline(line["set"], files)
    if not rings:
        return np.ones(lon.shape, bool)
    inside = [Outline(ring).contains_points(points) for ring in rings]
    return np.any(inside, axis=0).reshape(lon.shape)


def write_figures(lines: list[Line], folder: Path) -> list[Path]:
    """Maps, lengthscales and time series; those for which there are lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    done = {"air_quality_series.png": time_series()}
    held_out = [d for d in _of_midlands(lines) if "map" in d]
    if held_out:
        done["air_quality_variance.png"] = maps(
            held_out, "variance", "variance of f (units of the target's variance)"
        )
        done["air_quality_lengthscales.png"] = lengthscales(held_out)
    for name, when in (("uk", "23 March 2020"), ("netherlands", "23 March 2020, 9 h")):
        first = [
            d for d in lines if d["split"] == 0 and d["set"] == name and "map" in d
        ]
        first.sort(key=lambda d: METHODS.index(d["method"]))
        if first:
            done[f"air_quality_surface_{name}.png"] = maps(
                first, "mean", f"NO$_2$ on {when} (µg m$^{{-3}}$)"
            )
    for name, figure in done.items():
        figure.savefig(folder / name, dpi=150)
    plt.close("all")
    return [folder / name for name in done]


def maps(lines: list[Line], what: str, label: str) -> Any:
    """One map per method, all on one colour scale.

    Variances differ by powers of ten; of means the outermost twentieths, far from most
    stations, share the last colours.
    """
    from matplotlib.colors import LogNorm, Normalize

    from steingp.plots import style

    name = lines[0]["set"]
    panels = style.several_panels(None, len(lines), (2.7, 3.9), 4)
    values = []
    for line in lines:
        land = _on_land(line)
        grid = np.reshape(line["map"][what], land.shape)
        if what == "mean":  # in the units of the data
            mean, sd = line["map"]["scale"]
            grid = mean + sd * grid
        values.append(np.where(land, grid, np.nan))
    everything = np.concatenate([grid[np.isfinite(grid)] for grid in values])
    if what == "mean":
        norm = Normalize(*np.quantile(everything, (0.05, 0.95)))
    else:
        norm = LogNorm(max(everything.min(), 1e-6), max(everything.max(), 2e-6))
    stations = np.unique(table(name)[:, 1:3], axis=0)
    picture = None
    for panel, line, grid in zip(panels, lines, values, strict=True):
        picture = panel.pcolormesh(
            *_points_of(line), grid, cmap="viridis", norm=norm, shading="nearest",
            rasterized=True,
        )  # fmt: skip
        for ring in outline(name):
            panel.plot(*ring.T[:2], color=style.BLACK, lw=0.5)
        panel.plot(
            *stations.T, ".", color="white", markersize=3, mec=style.BLACK, mew=0.3
        )
        if line["split"] == "midlands":
            (west, south), (east, north) = MIDLANDS
            panel.plot([west, east, east, west, west], [south, south, north, north, south],
                       color="red", lw=1.4)  # fmt: skip
        (west, south), (east, north) = BOX[name]
        panel.set(xlim=(west, east), ylim=(south, north), xlabel="longitude (°)",
                  ylabel="latitude (°)", title=line["method"])  # fmt: skip
        panel.set_aspect(1.0 / np.cos(np.radians(0.5 * (south + north))))
        panel.title.set_fontsize(10)
        style.tidy(panel)
    figure = style.figure_of(panels)
    ends = "both" if what == "mean" else "neither"
    bar = figure.colorbar(picture, ax=panels, shrink=0.8, label=label, extend=ends)  # type: ignore[arg-type]
    bar.ax.tick_params(labelsize=8)
    return figure


def lengthscales(lines: list[Line]) -> Any:
    """Draws of every lengthscale by each method; of SVI a point."""
    from steingp.plots import style

    colours = dict(
        zip(METHODS, (style.BLUE, style.ORANGE, style.PURPLE, style.GREEN), strict=True)
    )
    labels = list(lines[0]["lengthscales"])
    titles = ["longitude", "latitude", "time"]
    panels = style.several_panels(None, len(labels), (3.1, 3.0), 3)
    for panel, label, title in zip(panels, labels, titles, strict=False):
        for line in lines:
            draws, method = np.array(line["lengthscales"][label]), line["method"]
            if len(draws) == 1:
                panel.axvline(draws[0], color=colours[method], ls=":", lw=1.4,
                              label=f"{method}, a point")  # fmt: skip
                continue
            heights, edges = np.histogram(np.log(draws), bins=12, density=True)
            panel.stairs(heights, np.exp(edges), color=colours[method], lw=1.4,
                         label=f"{method}, {len(draws)} draws")  # fmt: skip
        style.log_axis(panel, "x")
        panel.set(
            xlabel=f"lengthscale of {title} (sds)", ylabel="density of its logarithm"
        )
        style.tidy(panel)
    figure = style.figure_of(panels)
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, fontsize=8,
                  ncols=4, loc="outside lower center")  # fmt: skip
    return figure


def time_series(num: int = 4) -> Any:
    """Daily means at stations far from each other, with most days."""
    from steingp.plots import style

    values = table("uk")
    stations, counts = np.unique(values[:, 0], return_counts=True)
    full = stations[counts >= 0.95 * counts.max()]
    places = np.array([values[values[:, 0] == s][0, 1:3] for s in full])
    chosen = [int(np.argmin(places[:, 1]))]
    while len(chosen) < min(num, len(full)):  # each the farthest from those before
        apart = np.min([np.hypot(*(places - places[i]).T) for i in chosen], axis=0)
        chosen.append(int(np.argmax(apart)))
    names = _station_names()
    panels = style.several_panels(None, len(chosen), (3.4, 2.2), 2)
    highest = max(values[np.isin(values[:, 0], full[chosen]), 4])
    for panel, i in zip(panels, chosen, strict=True):
        own = values[values[:, 0] == full[i]]
        own = own[np.argsort(own[:, 3])]
        panel.plot(own[:, 3], own[:, 4], color=style.BLUE, lw=1.0)
        panel.axvline(LOCKDOWN, color=style.ORANGE, lw=1.0, ls="--", label="lockdown")
        panel.set(xlabel="days since 1 February 2020", ylabel="NO$_2$ (µg m$^{-3}$)",
                  ylim=(0.0, 1.05 * highest),
                  title=names.get(int(full[i]), f"station {full[i]:.0f}"))  # fmt: skip
        panel.title.set_fontsize(9)
        style.tidy(panel)
    figure = style.figure_of(panels)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, frameon=False, fontsize=8, loc="outside lower center"
    )
    return figure


def _station_names() -> dict[int, str]:
    import pandas as pd

    path = data_folder() / "air_quality" / f"{FILES['uk']}_stations.csv"
    if not path.is_file():
        return {}
    frame = pd.read_csv(path)
    return dict(zip(frame["station"].astype(int), frame["name"], strict=True))
