"""How sparse attention really is, by tenant and version, beside what calibration promised."""

from panels import (
    dashboard,
    dashed,
    heatmap,
    profiles_table,
    row,
    scatter,
    series,
    stat,
    target,
    variable,
)

CHOSEN_PROFILE = 'tenant=~"$tenant",profile=~"$profile",version=~"$version"'
CHOSEN_MODE = 'mode=~"$mode"'
CHOSEN = f"{CHOSEN_MODE},{CHOSEN_PROFILE}"
NAMED = "{{tenant}} {{mode}} {{profile}} {{version}}"


def query(expression, legend="", **options):
    return target(expression, legend, CHOSEN, **options)


def ratio(numerator, denominator, by="", window="$__rate_interval"):
    group = f" by ({by})" if by else ""
    return (
        f"sum{group} (rate({numerator}[{window}])) / " f"sum{group} (rate({denominator}[{window}]))"
    )


HEAD = ("eta_attention_keys_attended_total", "eta_attention_keys_eligible_total")
UNION = ("eta_attention_keys_read_total", "eta_attention_keys_cached_total")
BYTES_READ = "eta_attention_kv_bytes_read_total"
BYTES_DENSE = "eta_attention_kv_bytes_dense_total"
INDEX = "eta_attention_index_bytes_read_total"
CONFIRMED = ("eta_attention_values_read_total", "eta_attention_keys_read_total")
PREFILL = ("eta_attention_prefill_keys_attended_total", "eta_attention_prefill_keys_eligible_total")
PREFILL_ROWS = "eta_attention_prefill_rows_total"
MASS = ("eta_attention_mass_kept_ratio_sum", "eta_attention_mass_kept_ratio_count")
ERROR = ("eta_attention_output_error_total", "eta_attention_mass_kept_ratio_count")
FALLBACKS = "eta_attention_fallbacks_total"
FALLBACK_ROWS = "eta_attention_fallback_rows_total"
BETWEEN = "eta_inter_token_latency_seconds"
ONE = "tenant, profile, version"
BY = f"mode, {ONE}"
TARGET = "{{tenant}} {{profile}} {{version}} target"


def saved(by=""):
    group = f" by ({by})" if by else ""
    return (
        f"sum{group} (rate({BYTES_DENSE}[$__rate_interval])) - "
        f"sum{group} (rate({BYTES_READ}[$__rate_interval])) - "
        f"sum{group} (rate({INDEX}[$__rate_interval]))"
    )


def drift(density, calibrated):
    return f"{ratio(*density, ONE)} / max by ({ONE}) ({calibrated})"


def between_mean(by):
    return ratio(f"{BETWEEN}_sum", f"{BETWEEN}_count", by)


def build():
    target_line = dashed(".* target")
    return dashboard(
        "eta-sparsity",
        "ETA / Sparsity",
        "Densities of attention in decode steps. Union density: the share of the "
        "context that was read from memory; head density: the share that a query head "
        "attended to. 1 is full attention.",
        [
            row("Now"),
            stat(
                "Union density",
                "Share of the cached keys that was read, over all that is chosen.",
                [query(ratio(*UNION))],
                unit="percentunit",
                decimals=1,
            ),
            stat(
                "Head density",
                "Share of the cached keys that a query head attended to.",
                [query(ratio(*HEAD))],
                unit="percentunit",
                decimals=1,
            ),
            stat(
                "KV bytes saved",
                "Per second: what full attention would have read, less what was "
                "read, less the block index.",
                [query(saved())],
                unit="Bps",
            ),
            stat(
                "Saved share",
                "Of the bytes that full attention would have read.",
                [
                    query(
                        f"1 - (sum(rate({BYTES_READ}[$__rate_interval])) + "
                        f"sum(rate({INDEX}[$__rate_interval]))) / "
                        f"sum(rate({BYTES_DENSE}[$__rate_interval]))"
                    )
                ],
                unit="percentunit",
                decimals=1,
            ),
            stat(
                "Block index",
                "Bytes of block records that were read to choose, as a share of what "
                "full attention would have read.",
                [query(ratio(INDEX, BYTES_DENSE))],
                unit="percentunit",
                decimals=1,
            ),
            stat(
                "Decode rows",
                "Generated tokens per second whose attention is counted here.",
                [query("sum(rate(eta_attention_decode_rows_total[$__rate_interval]))")],
                unit="short",
            ),
            row("Density by profile"),
            series(
                "Union density and its target",
                "Dashed: what calibration measured on held-out text. "
                "Longer contexts than the samples read a smaller share of themselves.",
                [
                    query(ratio(*UNION, BY), NAMED),
                    target(
                        f"max by ({ONE}) (eta_profile_target_union_density_ratio)",
                        TARGET,
                        CHOSEN_PROFILE,
                    ),
                ],
                unit="percentunit",
                overrides=[target_line],
            ),
            series(
                "Head density and its target",
                "Dashed: what calibration measured on held-out text.",
                [
                    query(ratio(*HEAD, BY), NAMED),
                    target(
                        f"max by ({ONE}) (eta_profile_target_density_ratio)",
                        TARGET,
                        CHOSEN_PROFILE,
                    ),
                ],
                unit="percentunit",
                overrides=[target_line],
            ),
            heatmap(
                "Union density of requests",
                "Requests per bucket, when they ended.",
                "eta_request_union_density_ratio",
                "percentunit",
                more=CHOSEN,
            ),
            heatmap(
                "Head density of requests",
                "Requests per bucket, when they ended.",
                "eta_request_density_ratio",
                "percentunit",
                more=CHOSEN,
            ),
            series(
                "Measured over calibrated",
                "1: as calibrated, at contexts of any length; etactl stats compares like contexts. "
                "The alerts EtaDensityAboveTarget and EtaDensityFarBelowTarget look at it.",
                [
                    target(
                        drift(UNION, "eta_profile_target_union_density_ratio"),
                        "{{tenant}} {{profile}}@{{version}} union",
                        CHOSEN_PROFILE,
                    ),
                    target(
                        drift(HEAD, "eta_profile_target_density_ratio"),
                        "{{tenant}} {{profile}}@{{version}} head",
                        CHOSEN_PROFILE,
                    ),
                ],
            ),
            series(
                "Decode rows",
                "Per second.",
                [
                    query(
                        f"sum by ({BY}) (rate(eta_attention_decode_rows_total[$__rate_interval]))",
                        NAMED,
                    )
                ],
                stack=True,
            ),
            row("Quality"),
            series(
                "Mass kept and its target",
                "Measured on a share of decode rows and layers (--shadow_rate): the share of full "
                "attention's softmax on the keys that were attended to. Dashed: what calibration "
                "measured on held-out text. The alert EtaMassBelowTarget looks at it.",
                [
                    query(ratio(*MASS, BY, "30m"), NAMED),
                    target(
                        f"max by ({ONE}) (eta_profile_target_mass_ratio)",
                        TARGET,
                        CHOSEN_PROFILE,
                    ),
                ],
                unit="percentunit",
                low=None,
                overrides=[target_line],
            ),
            series(
                "Output error",
                "Distance of a head's output from full attention's, as a share of the latter.",
                [query(ratio(*ERROR, BY, "30m"), NAMED)],
                unit="percentunit",
            ),
            heatmap(
                "Mass kept",
                "Row-layers per bucket.",
                "eta_attention_mass_kept_ratio",
                "percentunit",
                more=CHOSEN,
            ),
            series(
                "Requests with full attention for want of mass",
                "Per second: those that kept less than their min_mass.",
                [
                    query(
                        f"sum by ({BY}) (rate({FALLBACKS}[$__rate_interval]))",
                        NAMED,
                    )
                ],
            ),
            series(
                "Decode steps with full attention for want of mass",
                "Per second. No density and nothing under What it saves counts them.",
                [
                    query(
                        f"sum by ({BY}) (rate({FALLBACK_ROWS}[$__rate_interval]))",
                        NAMED,
                    )
                ],
            ),
            row("What it saves"),
            series(
                "KV bytes saved",
                "Per second, less the block index that was read to choose.",
                [query(saved(BY), NAMED)],
                unit="Bps",
                stack=True,
                low=None,
            ),
            series(
                "KV bytes read",
                "Beside what full attention would have read for the same tokens.",
                [
                    query(f"sum(rate({BYTES_READ}[$__rate_interval]))", "read"),
                    query(f"sum(rate({INDEX}[$__rate_interval]))", "block index"),
                    query(f"sum(rate({BYTES_DENSE}[$__rate_interval]))", "full attention"),
                ],
                unit="Bps",
                overrides=[dashed("full attention")],
            ),
            scatter(
                "Density and time between tokens",
                "A point per moment and attention mode. Requests of all modes share steps, so "
                "that this shows a trend where they do not run together.",
                ratio(*UNION, "mode"),
                between_mean("mode"),
                "mode",
                "union density",
                "time between tokens",
                ("percentunit", "s"),
                more=CHOSEN_MODE,
            ),
            series(
                "Time between tokens",
                "Mean, by attention mode.",
                [target(between_mean("mode"), "{{mode}}", CHOSEN_MODE)],
                unit="s",
            ),
            series(
                "Values read of keys read",
                "Confirmed reads (confirm): of the blocks whose keys were read, the share whose values "
                "were read too. 1 where reads are not confirmed.",
                [query(ratio(*CONFIRMED, BY), NAMED)],
                unit="percentunit",
            ),
            row("Prompts (sparse prefill)"),
            series(
                "Head density of prompts",
                "Share of the keys that full prefill would have attended to, of prompts with sparse "
                "prefill. No line: nobody asks for it.",
                [query(ratio(*PREFILL, BY), NAMED)],
                unit="percentunit",
            ),
            series(
                "Prompt tokens with sparse prefill",
                "Per second.",
                [query(f"sum by ({BY}) (rate({PREFILL_ROWS}[$__rate_interval]))", NAMED)],
                stack=True,
            ),
            row("Profiles"),
            profiles_table(CHOSEN_PROFILE),
        ],
        [
            variable("mode", "Mode", "eta_attention_decode_rows_total", 'job=~"$job"'),
            variable("tenant", "Tenant", "eta_attention_decode_rows_total", 'job=~"$job"'),
            variable("profile", "Profile", "eta_attention_decode_rows_total", 'job=~"$job"'),
            variable("version", "Version", "eta_attention_decode_rows_total", 'job=~"$job"'),
        ],
    )
