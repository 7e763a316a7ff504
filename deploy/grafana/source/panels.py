"""Parts of Grafana dashboards (classic JSON model): a dashboard becomes a list of queries."""

import re

SCHEMA_VERSION = 41  # Grafana 12; older ones read it, newer ones migrate it
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SELECTED = 'job=~"$job",instance=~"$instance"'


def select(expression, more=""):
    """Adds the dashboard's variables to every eta_ or process_ metric: name, name{labels}."""
    labels = SELECTED + ("," + more if more else "")

    def replace(match):
        own = match.group(2)[1:-1] if match.group(2) else ""
        return f"{match.group(1)}{{{labels}{',' + own if own else ''}}}"

    return re.sub(r"\b((?:eta|process)_[a-z_]+)\b(\{[^}]*\})?", replace, expression)


def bound(seconds):
    """The label of a bucket: "5" for Prometheus 2, "5.0" for Prometheus 3."""
    return f'le=~"{seconds}|{seconds}[.]0"'


def target(expression, legend="", more="", **options):
    return {"expr": select(expression, more), "legendFormat": legend or "__auto", **options}


def of_front(metric, legend, by):
    """A rate of the fronts, which have jobs of their own; 0 where none is scraped."""
    expression = f"sum by ({by}) (rate({metric}[$__rate_interval])) or vector(0)"
    return {"expr": expression, "legendFormat": legend}


def per_second(metric, legend, by=""):
    group = f" by ({by})" if by else ""
    return target(f"sum{group} (rate({metric}[$__rate_interval]))", legend)


def table_target(expression, more=""):
    return target(expression, more=more, format="table", instant=True, range=False)


def _panel(kind, title, description, targets, width, height, options, defaults, overrides=()):
    panel = {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
        "options": options,
        "targets": [],
    }
    for index, item in enumerate(targets):
        panel["targets"].append(
            {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "range": True, **item}
        )
    return panel


def _thresholds(steps):
    """steps: (from, color), ascending; the first color holds below."""
    return {
        "mode": "absolute",
        "steps": [
            {"value": None if index == 0 else value, "color": color}
            for index, (value, color) in enumerate(steps)
        ],
    }


def dashed(legend):
    """Draws a series as a target line."""
    return {
        "matcher": {"id": "byRegexp", "options": f"/{legend}/"},
        "properties": [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}},
            {"id": "custom.fillOpacity", "value": 0},
        ],
    }


def series(
    title,
    description,
    targets,
    unit="short",
    width=12,
    height=8,
    stack=False,
    low=0,
    high=None,
    overrides=(),
    points=False,
):
    defaults = {
        "unit": unit,
        "custom": {
            "drawStyle": "line",
            "lineWidth": 2 if not stack else 1,
            "fillOpacity": 25 if stack else 5,
            "showPoints": "always" if points else "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if stack else "none", "group": "A"},
        },
    }
    if low is not None:
        defaults["min"] = low
    if high is not None:
        defaults["max"] = high
    options = {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["lastNotNull", "max"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return _panel(
        "timeseries", title, description, targets, width, height, options, defaults, overrides
    )


def stat(
    title,
    description,
    targets,
    unit="short",
    width=4,
    height=4,
    steps=(),
    mappings=(),
    decimals=None,
    text_mode="auto",
    graph=True,
):
    defaults = {
        "unit": unit,
        "mappings": list(mappings),
        "thresholds": _thresholds(steps or [(0, "text")]),
    }
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area" if graph else "none",
        "justifyMode": "auto",
        "textMode": text_mode,
        "orientation": "auto",
    }
    return _panel("stat", title, description, targets, width, height, options, defaults)


def gauge(title, description, targets, unit="percentunit", width=4, height=4, steps=(), high=1):
    defaults = {
        "unit": unit,
        "min": 0,
        "max": high,
        "thresholds": _thresholds(steps or [(0, "green")]),
    }
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showThresholdLabels": False,
        "showThresholdMarkers": True,
    }
    return _panel("gauge", title, description, targets, width, height, options, defaults)


def bars(title, description, targets, unit="short", width=12, height=8, high=None):
    """The last value of each series as a bar."""
    defaults = {"unit": unit, "min": 0, "thresholds": _thresholds([(0, "blue")])}
    if high is not None:
        defaults["max"] = high
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "horizontal",
        "displayMode": "basic",
        "showUnfilled": True,
    }
    return _panel("bargauge", title, description, targets, width, height, options, defaults)


def heatmap(title, description, metric, unit="s", width=12, height=8, more=""):
    """How many observations of a histogram fell into each of its buckets, over time."""
    expression = f"sum by (le) (increase({metric}_bucket[$__rate_interval]))"
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme",
            "scheme": "Oranges",
            "steps": 64,
            "exponent": 0.5,
            "fill": "dark-orange",
            "reverse": False,
        },
        "filterValues": {"le": 1e-9},
        "yAxis": {"axisPlacement": "left", "unit": unit, "reverse": False},
        "tooltip": {"mode": "single", "yHistogram": False},
        "legend": {"show": True},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
    }
    defaults = {"custom": {"scaleDistribution": {"type": "linear"}}}
    return _panel(
        "heatmap",
        title,
        description,
        [target(expression, "{{le}}", more, format="heatmap")],
        width,
        height,
        options,
        defaults,
    )


def scatter(title, description, x, y, by, x_title, y_title, units, width=12, height=8, more=""):
    """Points of two range queries that share the label `by`: a color for each of its values."""
    panel = _panel(
        "xychart",
        title,
        description,
        [target(x, more=more, format="table"), target(y, more=more, format="table")],
        width,
        height,
        {
            "mapping": "auto",
            "series": [],
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
                "calcs": [],
            },
            "tooltip": {"mode": "single", "sort": "none"},
        },
        {"custom": {"show": "points", "pointSize": {"fixed": 6}, "fillOpacity": 50}},
        [
            {
                "matcher": {"id": "byName", "options": name},
                "properties": [{"id": "unit", "value": unit}],
            }
            for name, unit in zip((x_title, y_title), units)
        ],
    )
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True},
                "indexByName": {by: 0, "Value #A": 1, "Value #B": 2},
                "renameByName": {"Value #A": x_title, "Value #B": y_title},
            },
        },
        {
            "id": "partitionByValues",
            "options": {"fields": [by], "keepFields": False, "naming": {"asLabels": False}},
        },
    ]
    return panel


def table(
    title, description, targets, width=24, height=8, hide=(), rename=None, units=None, merge=True
):
    """Instant queries, joined by their labels. units: column -> unit."""
    panel = _panel(
        "table",
        title,
        description,
        targets,
        width,
        height,
        {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"]}},
        {"custom": {"align": "auto", "inspect": False}},
        [
            {
                "matcher": {"id": "byName", "options": column},
                "properties": [{"id": "unit", "value": unit}],
            }
            for column, unit in (units or {}).items()
        ],
    )
    panel["transformations"] = ([{"id": "merge", "options": {}}] if merge else []) + [
        {
            "id": "organize",
            "options": {
                "excludeByName": {name: True for name in ("Time", "__name__", *hide)},
                "renameByName": rename or {},
            },
        }
    ]
    return panel


def profiles_table(more=""):
    return table(
        "Profiles in memory",
        "With the densities that calibration measured on held-out text.",
        [
            table_target(f"max by (tenant, profile, version{label}) ({metric})", more)
            for metric, label in (
                ("eta_profile_info", ", digest"),
                ("eta_profile_target_union_density_ratio", ""),
                ("eta_profile_target_density_ratio", ""),
            )
        ],
        hide=("Value #A",),
        units={"Union density": "percentunit", "Head density": "percentunit"},
        rename={
            "tenant": "Tenant",
            "profile": "Profile",
            "version": "Version",
            "digest": "Digest",
            "Value #B": "Union density",
            "Value #C": "Head density",
        },
    )


def row(title):
    return {
        "type": "row",
        "title": title,
        "collapsed": False,
        "panels": [],
        "gridPos": {"w": COLUMNS, "h": 1},
    }


def quantiles(metric, by=()):
    """Median, 95th and 99th percentile of a histogram, per label of `by`."""
    group = ", ".join(["le", *by])
    suffix = "".join(f" {{{{{label}}}}}" for label in by)
    return [
        target(
            f"histogram_quantile({q}, sum by ({group}) "
            f"(rate({metric}_bucket[$__rate_interval])))",
            f"p{round(q * 100)}{suffix}",
        )
        for q in (0.5, 0.95, 0.99)
    ]


def variable(name, label, metric, more=""):
    """A choice among the values of a label."""
    query = (
        f"label_values({metric}{{{more}}}, {name})" if more else f"label_values({metric}, {name})"
    )
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": "variable"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
        "hide": 0,
    }


def _placed(panels):
    """Gives panels ids and places: from left to right, a new line where one does not fit."""
    x = y = line = 0
    for number, panel in enumerate(panels, start=1):
        place = panel["gridPos"]
        if x + place["w"] > COLUMNS:
            x, y, line = 0, y + line, 0
        place.update(x=x, y=y)
        panel["id"] = number
        x += place["w"]
        line = max(line, place["h"])
    return panels


def dashboard(uid, title, description, panels, variables=(), time="now-1h"):
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["eta"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one cross-hair for all panels
        "fiscalYearStartMonth": 0,
        "timezone": "browser",
        "time": {"from": time, "to": "now"},
        "timepicker": {},
        "refresh": "10s",
        "links": [
            {
                "type": "dashboards",
                "title": "ETA",
                "tags": ["eta"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "icon": "",
                "tooltip": "",
                "url": "",
            }
        ],
        "annotations": {
            "list": [
                {
                    "name": "restarts",
                    "enable": True,
                    "hide": False,
                    "iconColor": "orange",
                    "datasource": DATASOURCE,
                    "titleFormat": "{{instance}} started",
                    "expr": select("changes(process_start_time_seconds[$__interval]) > 0"),
                }
            ]
        },
        "templating": {
            "list": [
                {
                    "type": "datasource",
                    "name": "datasource",
                    "label": "Data source",
                    "query": "prometheus",
                    "refresh": 1,
                    "regex": "",
                    "multi": False,
                    "includeAll": False,
                    "current": {},
                    "options": [],
                    "hide": 0,
                },
                variable("job", "Job", "eta_build_info"),
                variable("instance", "Instance", "eta_build_info", 'job=~"$job"'),
                *variables,
            ]
        },
        "panels": _placed(panels),
    }
