"""Who uses the service, and how it goes for each."""

from panels import dashboard, row, series, stat, table, table_target, target, variable

CHOSEN = 'tenant=~"$tenant"'


def query(expression, legend="{{tenant}}", **options):
    return target(expression, legend, CHOSEN, **options)


def total(metric, window="$__range"):
    return table_target(f"sum by (tenant) (increase({metric}[{window}]))", CHOSEN)


def total_or_none(selector):
    calls = "sum by (tenant) (increase(eta_requests_total[$__range]))"
    wanted = f"sum by (tenant) (increase(eta_requests_total{selector}[$__range]))"
    return table_target(f"{wanted} or {calls} * 0", CHOSEN)


def build():
    faults = 'code=~"UNAVAILABLE|INTERNAL|UNKNOWN|DATA_LOSS"'
    rate = "[$__rate_interval]"
    return dashboard(
        "eta-tenants",
        "ETA / Tenants",
        "Calls and tokens by tenant. The server "
        "tells so many tenants apart as --metrics_tenants or --metrics_label_limit say; "
        "the rest are `other`.",
        [
            row("Now"),
            stat(
                "Tenants",
                "With calls in the shown range.",
                [query("count(sum by (tenant) (increase(eta_requests_total[$__range])) > 0)", "")],
                width=6,
                graph=False,
            ),
            stat(
                "Calls",
                "Per second.",
                [query(f"sum(rate(eta_requests_total{rate}))", "")],
                unit="reqps",
                width=6,
            ),
            stat(
                "Generated tokens",
                "Per second.",
                [query(f"sum(rate(eta_generated_tokens_total{rate}))", "")],
                width=6,
            ),
            stat(
                "Prompt tokens",
                "Per second.",
                [query(f"sum(rate(eta_prompt_tokens_total{rate}))", "")],
                width=6,
            ),
            row("In the shown range"),
            table(
                "By tenant",
                "",
                [
                    total("eta_requests_total"),
                    total_or_none(f"{{{faults}}}"),
                    total_or_none('{code="DEADLINE_EXCEEDED"}'),
                    total_or_none('{code="RESOURCE_EXHAUSTED"}'),
                    total("eta_prompt_tokens_total"),
                    total("eta_prompt_tokens_cached_total"),
                    total("eta_generated_tokens_total"),
                ],
                rename={
                    "tenant": "Tenant",
                    "Value #A": "Calls",
                    "Value #B": "Faults",
                    "Value #C": "Deadline passed",
                    "Value #D": "Refused (RESOURCE_EXHAUSTED)",
                    "Value #E": "Prompt tokens",
                    "Value #F": "of them cached",
                    "Value #G": "Generated tokens",
                },
            ),
            row("Over time"),
            series(
                "Calls",
                "",
                [query(f"sum by (tenant) (rate(eta_requests_total{rate}))")],
                unit="reqps",
                stack=True,
            ),
            series(
                "Calls without OK",
                "By tenant and code.",
                [
                    query(
                        f'sum by (tenant, code) (rate(eta_requests_total{{code!="OK"}}{rate}))',
                        "{{tenant}} {{code}}",
                    )
                ],
                unit="reqps",
                stack=True,
            ),
            series(
                "Generated tokens",
                "Per second.",
                [query(f"sum by (tenant) (rate(eta_generated_tokens_total{rate}))")],
                stack=True,
            ),
            series(
                "Prompt tokens",
                "Per second.",
                [query(f"sum by (tenant) (rate(eta_prompt_tokens_total{rate}))")],
                stack=True,
            ),
            series(
                "Attention by tenant",
                "Answered calls by attention mode and version.",
                [
                    query(
                        "sum by (tenant, mode, profile, version) (rate(eta_requests_total"
                        f'{{method="Generate"}}{rate}))',
                        "{{tenant}} {{mode}} {{profile}} {{version}}",
                    )
                ],
                unit="reqps",
                stack=True,
            ),
            series(
                "Prefix cache",
                "Share of prompt tokens that the prefix cache had.",
                [
                    query(
                        f"sum by (tenant) (rate(eta_prompt_tokens_cached_total{rate})) / "
                        f"sum by (tenant) (rate(eta_prompt_tokens_total{rate}))"
                    )
                ],
                unit="percentunit",
                high=1,
            ),
            series(
                "Union density",
                "Share of the cached keys that attention read for the tenant.",
                [
                    query(
                        f"sum by (tenant) (rate(eta_tenant_attention_keys_read_total{rate})) / "
                        f"sum by (tenant) (rate(eta_tenant_attention_keys_cached_total{rate}))"
                    )
                ],
                unit="percentunit",
            ),
            series(
                "KV bytes saved",
                "Per second: what full attention would have read, less what was.",
                [
                    query(
                        f"sum by (tenant) (rate(eta_tenant_attention_kv_bytes_dense_total{rate})) - "
                        f"sum by (tenant) (rate(eta_tenant_attention_kv_bytes_read_total{rate}))"
                    )
                ],
                unit="Bps",
                stack=True,
            ),
            row("Limits"),
            series(
                "Calls now",
                "Of a tenant that may have so many at a time (--tenants): the share of them.",
                [query("eta_tenant_calls / on (instance, tenant) eta_tenant_max_calls")],
                unit="percentunit",
                high=1,
            ),
            series(
                "Token budget",
                "What is left of it; at 0 calls are refused until tokens have flowed in.",
                [query("eta_tenant_tokens_left / on (instance, tenant) eta_tenant_burst_tokens")],
                unit="percentunit",
                high=1,
            ),
            series(
                "KV cache",
                "Tokens reserved for running requests.",
                [query("sum by (tenant) (eta_tenant_kv_tokens)")],
                stack=True,
            ),
            series(
                "Requests",
                "In the batch, and waiting for a place in it.",
                [
                    query("sum by (tenant) (eta_tenant_requests_running)", "{{tenant}} running"),
                    query("sum by (tenant) (eta_tenant_requests_waiting)", "{{tenant}} waiting"),
                ],
            ),
            series(
                "Paused",
                "Requests that pause until their clients have read.",
                [query("sum by (tenant) (eta_tenant_requests_paused)")],
            ),
            series(
                "Profiles",
                "Versions that it has stored.",
                [query("max by (tenant) (eta_tenant_profile_versions)")],
            ),
            series(
                "Bytes of profiles",
                "Of what it has stored.",
                [query("max by (tenant) (eta_tenant_profile_bytes)")],
                unit="bytes",
            ),
            series(
                "Calibrations",
                "That run.",
                [query("sum by (tenant) (eta_tenant_calibrations)")],
            ),
            series(
                "Refused for a limit of the tenant",
                "By the limit.",
                [
                    query(
                        f"sum by (tenant, reason) (rate(eta_tenant_refused_total{rate}))",
                        "{{tenant}} {{reason}}",
                    )
                ],
                unit="reqps",
                stack=True,
            ),
        ],
        [variable("tenant", "Tenant", "eta_requests_total", 'job=~"$job"')],
    )
