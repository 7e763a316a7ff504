#!/usr/bin/env python3
"""Draws panels of the sparsity dashboard, from the same queries, where there is no Grafana.

plot_sparsity.py PROMETHEUS_URL OUTPUT [MINUTES [END]]    (needs python3-matplotlib)

OUTPUT ends in .png or .svg; END is a Unix time, now unless given.
"""

import json
import pathlib
import sys
import time
import urllib.parse
import urllib.request

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

BOARD = pathlib.Path(__file__).resolve().parent / "dashboards" / "eta-sparsity.json"
PANELS = (
    "Union density and its target",
    "Head density and its target",
    "KV bytes read",
    "KV bytes saved",
)
POINTS = 240
VARIABLES = {
    "$__rate_interval": "20s",
    "$job": ".*",
    "$instance": ".*",
    "$mode": ".*",
    "$profile": ".*",
    "$tenant": ".*",
    "$version": ".*",
}


def query(url, expression, minutes, end):
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    arguments = urllib.parse.urlencode(
        {
            "query": expression,
            "start": end - 60 * minutes,
            "end": end,
            "step": max(1, 60 * minutes / POINTS),
        }
    )
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{arguments}", timeout=60) as answer:
        return json.load(answer)["data"]["result"]


def legend(template, labels):
    for name, value in labels.items():
        template = template.replace("{{" + name + "}}", "" if value == "none" else value)
    return template.strip()


def draw(axes, panel, url, minutes, end):
    unit = panel["fieldConfig"]["defaults"]["unit"]
    scale = {"percentunit": 100, "Bps": 1e-6}[unit]
    colors = {}
    for target in panel["targets"]:
        for series in query(url, target["expr"], minutes, end):
            name = legend(target["legendFormat"], series["metric"])
            of_target = name.endswith(" target")
            if of_target and "profile " + name.removesuffix(" target") not in colors:
                continue  # of a profile without traffic
            values = [
                (float(at) - end + 60 * minutes, scale * float(value))
                for at, value in series["values"]
            ]
            values = [(at, value) for at, value in values if value == value]
            if not values:
                continue
            color = colors.get("profile " + name.removesuffix(" target")) if of_target else None
            (line,) = axes.plot(
                *zip(*values),
                label=name,
                color=color,
                linewidth=1.5,
                linestyle="--" if of_target else "-",
            )
            colors[name] = line.get_color()
    axes.set_title(panel["title"], fontsize=10)
    axes.set_ylabel({"percentunit": "%", "Bps": "MB/s"}[unit])
    axes.set_xlabel("seconds")
    axes.set_xlim(0, 60 * minutes)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="best")


def main():
    if len(sys.argv) not in (3, 4, 5):
        sys.exit(__doc__)
    url, output = sys.argv[1].rstrip("/"), sys.argv[2]
    minutes = float(sys.argv[3]) if len(sys.argv) > 3 else 10
    end = float(sys.argv[4]) if len(sys.argv) > 4 else time.time()
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    by_title = {panel["title"]: panel for panel in board["panels"]}
    figure, grid = pyplot.subplots(2, 2, figsize=(11, 6.2))
    for axes, title in zip(grid.flat, PANELS):
        draw(axes, by_title[title], url, minutes, end)
    figure.tight_layout()
    figure.savefig(output, dpi=90)


if __name__ == "__main__":
    main()
