"""What the server is protected by: waits, slow readers, memory, connections, files it re-reads."""

from panels import dashboard, of_front, per_second, row, series, stat, target

RATE = "[$__rate_interval]"


def used(taken, bound, legend):
    return target(f"max by (instance) ({taken} / {bound})", legend)


def build():
    return dashboard(
        "eta-overload",
        "ETA / Overload",
        "What is nearly full, what is refused for it, and what is held for peers that are slow.",
        [
            row("Now"),
            stat(
                "Predicted wait",
                "Of a request that comes now, if all that waits goes first; of the fullest device. "
                "Calls whose deadlines are nearer are refused at once.",
                [target("max(eta_predicted_wait_seconds)")],
                unit="s",
                steps=[(0, "green"), (1, "orange"), (10, "red")],
            ),
            stat(
                "Refused",
                "Calls per second, for any reason.",
                [target(f"sum(rate(eta_requests_rejected_total{RATE}))")],
                unit="reqps",
            ),
            stat(
                "Memory",
                "Of the process's limit, of the fullest server; 0 without a limit.",
                [target("max(eta_memory_used_ratio)")],
                unit="percentunit",
                steps=[(0, "green"), (0.85, "orange"), (0.95, "red")],
            ),
            stat(
                "Connections",
                "Open, of what may be; of the fullest server.",
                [target("max(eta_connections_open / eta_connections_max)")],
                unit="percentunit",
                steps=[(0, "green"), (0.7, "orange"), (0.9, "red")],
            ),
            stat(
                "File descriptors",
                "Open, of what may be; of the fullest server.",
                [target("max(process_open_fds / process_max_fds)")],
                unit="percentunit",
                steps=[(0, "green"), (0.7, "orange"), (0.9, "red")],
            ),
            stat(
                "Files not in effect",
                "Of the configuration, on all servers: what they hold now was refused.",
                [target("count(eta_file_current == 0) or vector(0)")],
                graph=False,
                steps=[(0, "green"), (1, "red")],
            ),
            row("Admission"),
            series(
                "Predicted wait",
                "By server and device.",
                [
                    target(
                        "max by (instance, device) (eta_predicted_wait_seconds)",
                        "{{instance}} {{device}}",
                    )
                ],
                unit="s",
            ),
            series(
                "Refused, by reason",
                "Calls that ended before any work was done for them.",
                [per_second("eta_requests_rejected_total", "{{reason}}", "reason")],
                unit="reqps",
                stack=True,
            ),
            series(
                "Prompts",
                "How fast they go, as the predictions take it.",
                [
                    target(
                        "min by (instance, device) (eta_prefill_tokens_per_second)",
                        "{{instance}} {{device}}",
                    )
                ],
            ),
            series(
                "Slots taken",
                "Calls that wait for the profile store, a profile, the tokenizer or a format, and watches of Stats, of what may be.",
                [
                    used(
                        "eta_store_calls_waiting", "eta_store_calls_max_waiting", "{{instance}} store"
                    ),
                    used(
                        "eta_tokenizer_calls_waiting",
                        "eta_tokenizer_calls_max_waiting",
                        "{{instance}} texts",
                    ),
                    used(
                        "eta_format_calls_waiting",
                        "eta_format_calls_max_waiting",
                        "{{instance}} formats",
                    ),
                    used(
                        "eta_profile_lookups_waiting",
                        "eta_profile_lookups_max_waiting",
                        "{{instance}} profiles",
                    ),
                    used("eta_stats_watchers", "eta_stats_watchers_max", "{{instance}} watches"),
                ],
                unit="percentunit",
                high=1,
            ),
            row("Slow readers"),
            series(
                "Paused",
                "Requests in the batch that pause until their clients have read.",
                [target("sum by (instance) (eta_requests_paused)", "{{instance}}")],
            ),
            series(
                "Given up",
                "Answers that nobody read in time, and those that were given up because memory was "
                "short.",
                [
                    per_second("eta_answers_cut_off_total", "{{instance}} unread", "instance"),
                    per_second("eta_memory_streams_ended_total", "{{instance}} memory", "instance"),
                ],
                unit="reqps",
            ),
            series(
                "Short of memory",
                "Short: calls are refused. Critical: the largest answers end too.",
                [
                    target(
                        'sum by (state) (eta_memory_pressure_state{state!="none"})',
                        "{{state}}",
                    )
                ],
            ),
            row("Connections and files"),
            series(
                "Refused by the front",
                "Calls that no server saw, by reason: over a limit of the front's, or with no server to "
                "take them.",
                [of_front("eta_front_refused_total", "{{reason}}", "reason")],
                unit="reqps",
                stack=True,
            ),
            series(
                "Connections",
                "Open.",
                [target("sum by (instance) (eta_connections_open)", "{{instance}}")],
            ),
            series(
                "Connections closed at once",
                "No room, too many of a peer, no file descriptor left; and errors of the system.",
                [
                    per_second("eta_connections_refused_total", "{{reason}}", "reason"),
                    target(
                        f"sum(rate(eta_connection_accept_errors_total{RATE}))", "errors of the system"
                    ),
                ],
                unit="cps",
                stack=True,
            ),
            series(
                "Connections served",
                "New ones, per second.",
                [per_second("eta_connections_accepted_total", "{{instance}}", "instance")],
                unit="cps",
            ),
            series(
                "Files of the configuration",
                "1 while what they hold is in effect, 0 while it was refused and something older is.",
                [target("min by (instance, file) (eta_file_current)", "{{instance}} {{file}}")],
                high=1,
            ),
        ],
    )
