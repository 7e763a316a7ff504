"""Is the service healthy? What clients feel: latency, errors, refusals, error budget."""

from panels import bound, dashboard, heatmap, per_second, quantiles, row, series, stat, target

# The objective and what counts as a fault: as in deploy/prometheus/rules.yml.
CALLS = 'eta_calls_total{method="Generate"}'
FAULTS = 'eta_calls_total{method="Generate",code=~"UNAVAILABLE|INTERNAL|UNKNOWN|DATA_LOSS"}'
LATE = "eta_deadline_exceeded_wait_seconds"
BUDGET = "0.005"


def fault_share(window):
    return (
        f"((sum(rate({FAULTS}[{window}])) or vector(0)) + sum(rate({LATE}_count[{window}]))"
        f" - sum(rate({LATE}_bucket{{{bound(5)}}}[{window}]))) / sum(rate({CALLS}[{window}]))"
    )


def burn(window):
    return target(f"{fault_share(window)} / {BUDGET}", window)


def quantile(q, metric, by=""):
    return f"histogram_quantile({q}, sum by (le{by}) (rate({metric}_bucket[$__rate_interval])))"


def share_within(metric, seconds):
    return target(
        f"sum(rate({metric}_bucket{{{bound(seconds)}}}[$__rate_interval])) / "
        f"sum(rate({metric}_count[$__rate_interval]))",
        f"{seconds} s",
    )


def build():
    first = "eta_time_to_first_token_seconds"
    between = "eta_inter_token_latency_seconds"
    rate = "[$__rate_interval]"
    return dashboard(
        "eta-service",
        "ETA / Service",
        "What clients of ETA Server feel.",
        [
            row("Now"),
            stat(
                "Serving",
                "Servers that are up and serve: neither draining, nor stalled, nor without a "
                "device.",
                [target('sum(eta_engine_state{state="serving"})')],
                steps=[(0, "red"), (1, "green")],
            ),
            stat(
                "Generate calls",
                "Ended per second.",
                [target(f"sum(rate({CALLS}{rate}))")],
                unit="reqps",
            ),
            stat(
                "Faults",
                "Share of Generate calls that ended with UNAVAILABLE, INTERNAL, UNKNOWN or "
                "DATA_LOSS, or with DEADLINE_EXCEEDED after over 5 s without a token.",
                [target(fault_share("$__rate_interval"))],
                unit="percentunit",
                steps=[(0, "green"), (0.005, "orange"), (0.02, "red")],
            ),
            stat(
                "First token, p95",
                "From a request's arrival to its first token.",
                [target(quantile(0.95, first))],
                unit="s",
                steps=[(0, "green"), (1, "orange"), (5, "red")],
            ),
            stat(
                "Between tokens, p95",
                "From one token of an answer to the next.",
                [target(quantile(0.95, between))],
                unit="s",
                steps=[(0, "green"), (0.1, "orange"), (0.5, "red")],
            ),
            stat(
                "Waiting",
                "Requests that wait for a place in the batch.",
                [target("sum(eta_requests_waiting)")],
                steps=[(0, "green"), (5, "orange"), (50, "red")],
            ),
            row("Latency"),
            series("Time to first token", "From arrival.", quantiles(first), unit="s"),
            heatmap("Time to first token, distribution", "Requests per bucket.", first),
            series("Time between tokens", "Of the same answer.", quantiles(between), unit="s"),
            heatmap("Time between tokens, distribution", "Tokens per bucket.", between),
            series(
                "Time per output token",
                "Of answered requests: from the first token to the last, by the tokens after the first.",
                quantiles("eta_request_time_per_output_token_seconds"),
                unit="s",
            ),
            series(
                "Time in the queue",
                "From arrival to the first step that worked on the request.",
                quantiles("eta_request_queue_duration_seconds"),
                unit="s",
            ),
            series(
                "Whole request",
                "Of answered requests, from arrival to the last token.",
                quantiles("eta_request_duration_seconds"),
                unit="s",
            ),
            series(
                "First token by attention, p95",
                "By attention mode.",
                [target(quantile(0.95, first, ", mode"), "{{mode}}")],
                unit="s",
            ),
            series(
                "First tokens in time",
                "Share within 1 s and within 5 s.",
                [share_within(first, 1), share_within(first, 5)],
                unit="percentunit",
                high=1,
            ),
            row("Calls and errors"),
            series(
                "Calls by code",
                "All methods, by the gRPC code that they ended with.",
                [per_second("eta_calls_total", "{{code}}", "code")],
                unit="reqps",
                stack=True,
            ),
            series(
                "Calls by method",
                "",
                [per_second("eta_calls_total", "{{method}}", "method")],
                unit="reqps",
                stack=True,
            ),
            series(
                "Refused, by reason",
                "Calls that ended before any work was done for them.",
                [per_second("eta_requests_rejected_total", "{{reason}}", "reason")],
                unit="reqps",
                stack=True,
            ),
            series(
                "Failed, by reason",
                "Calls that were worked on and ended in an error.",
                [per_second("eta_requests_failed_total", "{{reason}}", "reason")],
                unit="reqps",
                stack=True,
            ),
            series(
                "Why answers ended",
                "Finish reasons of answered requests.",
                [
                    target(
                        f'sum by (finish_reason) (rate(eta_requests_total{{code="OK",'
                        f'finish_reason!="none"}}{rate}))',
                        "{{finish_reason}}",
                    )
                ],
                unit="reqps",
                stack=True,
            ),
            series(
                "Cancelled, by stage",
                "Requests that the client gave up, and where they were.",
                [per_second("eta_requests_cancelled_total", "{{stage}}", "stage")],
                unit="reqps",
                stack=True,
            ),
            row("Formats of answers"),
            series(
                "Calls by format",
                "Generate calls that asked for one.",
                [per_second("eta_format_requests_total", "{{format}}", "format")],
                unit="reqps",
                stack=True,
            ),
            series(
                "Not whole",
                "Answers that max_tokens cut off, and those that were not what their format asks for.",
                [
                    target(
                        f'sum by (result) (rate(eta_format_answers_total{{result!="ended"}}{rate}))',
                        "{{result}}",
                    )
                ],
                unit="reqps",
                stack=True,
            ),
            series(
                "Compiled",
                "How long calls waited whose format was not kept compiled.",
                quantiles("eta_format_compile_duration_seconds"),
                unit="s",
            ),
            series(
                "Found compiled",
                "Share of the calls that looked for their format.",
                [
                    target(
                        f'sum(rate(eta_format_lookups_total{{result="hit"}}{rate})) / '
                        f"sum(rate(eta_format_lookups_total{rate}))",
                        "found",
                    )
                ],
                unit="percentunit",
                high=1,
            ),
            series(
                "Masks of a step",
                "How long steps waited until it was known which tokens formats allow, of those that "
                "have any.",
                quantiles("eta_step_mask_wait_seconds"),
                unit="s",
            ),
            row("Error budget: 99.5 % of Generate calls without a fault in 30 days"),
            series(
                "Burn rate",
                "At 1 the budget of 30 days lasts for 30 days. Alerts: 14.4 over 1 h and "
                "5 min, 6 over 6 h and 30 min.",
                [burn("5m"), burn("30m"), burn("1h"), burn("6h")],
                width=16,
            ),
            stat(
                "Budget left",
                "Of the faults that the time range shown here may have.",
                [target(f"1 - {fault_share('$__range')} / {BUDGET}")],
                unit="percentunit",
                width=8,
                height=8,
                graph=False,
                steps=[(-1000, "red"), (0, "orange"), (0.25, "green")],
            ),
        ],
    )
