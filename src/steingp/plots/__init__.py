"""Figures of a posterior: matplotlib axes in, axes out.

A function that draws one panel takes `axes`, one matplotlib Axes, and returns it; one
that draws several takes `axes`, as many Axes as there are panels (an array or a list),
and returns their Figure. Without `axes` each makes a new figure. Colours are from Okabe
and Ito's palette, which colour-blind readers can tell apart. matplotlib is imported when
something is drawn.

| what | function |
|---|---|
| everything on one page | `overview`, or `posterior.plot()` |
| predictions | `predictive_band` (one input column), `maps` (two or more) |
| hyperparameters | `marginals`, `pairs`, `relevance` |
| how the run went | `traces`, `trajectories` |
| are predictions right, and why unsure | `calibration`, `uncertainty` |
"""

from steingp.plots.checking import calibration as calibration
from steingp.plots.checking import uncertainty as uncertainty
from steingp.plots.hyperparameters import marginals as marginals
from steingp.plots.hyperparameters import pairs as pairs
from steingp.plots.hyperparameters import relevance as relevance
from steingp.plots.page import overview as overview
from steingp.plots.predictions import maps as maps
from steingp.plots.predictions import predictive_band as predictive_band
from steingp.plots.runs import traces as traces
from steingp.plots.runs import trajectories as trajectories
