"""Calibration jobs, profiles and the store that keeps them."""

from panels import dashboard, heatmap, profiles_table, quantiles, row, series, stat, target


def build():
    done = "eta_calibrations_total"
    took = "eta_calibration_duration_seconds"
    return dashboard(
        "eta-calibrations",
        "ETA / Calibrations",
        "Calibration jobs, the profiles that they make, and the store.",
        [
            row("Now"),
            stat(
                "Running",
                "Calibrations in progress.",
                [target("sum(eta_calibrations_in_progress)")],
            ),
            stat(
                "Stored",
                "Calibrations of the time range that stored a profile.",
                [target(f'sum(increase({done}{{result="success"}}[$__range]))')],
                graph=False,
                decimals=0,
            ),
            stat(
                "Failed",
                "Calibrations of the time range that ended in an error.",
                [target(f'sum(increase({done}{{result="failed"}}[$__range])) or vector(0)')],
                graph=False,
                decimals=0,
                steps=[(0, "green"), (1, "orange")],
            ),
            stat(
                "Profiles",
                "Versions in memory, of the server that has most.",
                [target("max(eta_profiles_loaded)")],
            ),
            stat(
                "Store",
                "1: the profile store of every server works.",
                [target("min(eta_profile_store_up)")],
                graph=False,
                steps=[(0, "red"), (1, "green")],
            ),
            stat(
                "Staleness",
                "Time since the oldest check of a profile in use; after "
                "--profile_staleness requests with it are refused.",
                [target("max(eta_profile_staleness_seconds)")],
                unit="s",
                steps=[(0, "green"), (300, "orange"), (1800, "red")],
            ),
            row("Jobs"),
            series(
                "Ended",
                "Calibrations by result; rejected ones never ran.",
                [target(f"sum by (result) (increase({done}[$__rate_interval]))", "{{result}}")],
                stack=True,
            ),
            series(
                "In progress",
                "By server.",
                [target("eta_calibrations_in_progress", "{{instance}}")],
            ),
            series("Duration", "Of calibrations that ran.", quantiles(took), unit="s"),
            heatmap("Duration, distribution", "Calibrations per bucket.", took),
            series(
                "Measured tokens",
                "Rows of calibration passes per second.",
                [
                    target(
                        "sum by (instance) (rate(eta_calibration_pass_rows_total[$__rate_interval]))",
                        "{{instance}}",
                    )
                ],
            ),
            series(
                "Calls",
                "Calls of Calibrate by code.",
                [
                    target(
                        'sum by (code) (rate(eta_calls_total{method="Calibrate"}'
                        "[$__rate_interval]))",
                        "{{code}}",
                    )
                ],
                unit="reqps",
                stack=True,
            ),
            row("Profiles and store"),
            profiles_table(),
            series(
                "Reloads",
                "Looks at the store for new versions and aliases.",
                [
                    target(
                        "sum by (result) (rate(eta_profile_reloads_total[$__rate_interval]))",
                        "{{result}}",
                    )
                ],
                unit="ops",
            ),
            series(
                "Default profile",
                "Requests without an attention mode, by what they got of --default_profile.",
                [
                    target(
                        "sum by (result) "
                        "(rate(eta_default_profile_requests_total[$__rate_interval]))",
                        "{{result}}",
                    )
                ],
                unit="reqps",
                stack=True,
            ),
            series(
                "Memory of profiles",
                "By server.",
                [target("eta_profile_cache_bytes", "{{instance}}")],
                unit="bytes",
            ),
            series(
                "Calls of profiles",
                "By method and code.",
                [
                    target(
                        'sum by (method, code) (rate(eta_calls_total{method=~".*Profile.*"}'
                        "[$__rate_interval]))",
                        "{{method}} {{code}}",
                    )
                ],
                unit="reqps",
                stack=True,
            ),
        ],
    )
