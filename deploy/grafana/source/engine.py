"""What the engine does: steps, batches, the KV cache, memory."""

from panels import (
    dashboard,
    gauge,
    heatmap,
    per_second,
    quantiles,
    row,
    series,
    stat,
    table,
    table_target,
    target,
)


def build():
    step = "eta_step_duration_seconds"
    return dashboard(
        "eta-engine",
        "ETA / Engine",
        "The step loop, its batches and its memory.",
        [
            row("Now"),
            stat(
                "State",
                "Of each server.",
                [target("sum by (state) (eta_engine_state) > 0", "{{state}}")],
                text_mode="name",
                graph=False,
            ),
            stat(
                "Oldest step",
                "Time since the last step of the server that has waited longest; only "
                "while it has requests to work on.",
                [
                    target(
                        "max((time() - eta_engine_last_step_timestamp_seconds) * on (job, instance) "
                        "group_left () (eta_requests_running > bool 0))"
                    )
                ],
                unit="s",
                steps=[(0, "green"), (5, "orange"), (30, "red")],
            ),
            gauge(
                "KV cache in use",
                "Blocks that requests hold; of the fullest server.",
                [target("max(eta_kv_cache_usage_ratio)")],
                steps=[(0, "green"), (0.8, "orange"), (0.95, "red")],
            ),
            stat(
                "Tokens",
                "Generated per second.",
                [per_second("eta_generated_tokens_total", "")],
                unit="short",
            ),
            stat(
                "Steps",
                "Per second.",
                [target(f"sum(rate({step}_count[$__rate_interval]))")],
                unit="ops",
            ),
            stat(
                "Up for",
                "Shortest time since a start.",
                [target("min(time() - process_start_time_seconds)")],
                unit="s",
                graph=False,
            ),
            row("Requests"),
            series(
                "Running and waiting",
                "Requests in the batch, and those that wait for a place.",
                [
                    target("sum(eta_requests_running)", "running"),
                    target("sum(eta_requests_waiting)", "waiting"),
                ],
            ),
            series(
                "Prompt tokens that wait",
                "Of the requests in the queue.",
                [target("eta_waiting_prompt_tokens", "{{instance}}")],
            ),
            series(
                "Tokens per second",
                "Cached prompt tokens were taken from the prefix cache.",
                [
                    per_second("eta_generated_tokens_total", "generated"),
                    per_second("eta_prompt_tokens_total", "prompt"),
                    per_second("eta_prompt_tokens_cached_total", "of the prompt, cached"),
                ],
            ),
            series(
                "Preemptions",
                "Requests that gave their memory up to others and are computed again.",
                [per_second("eta_preemptions_total", "preemptions")],
                unit="ops",
            ),
            series(
                "Prefix cache",
                "Share of prompt tokens that the prefix cache had.",
                [
                    target(
                        "sum(rate(eta_prompt_tokens_cached_total[$__rate_interval])) / "
                        "sum(rate(eta_prompt_tokens_total[$__rate_interval]))",
                        "hits",
                    )
                ],
                unit="percentunit",
                high=1,
            ),
            series(
                "Drafted tokens",
                "Guessed ahead per second, and those of them that were right. Each right one saves a step; "
                "one that the model guessed with sparser reads took one, too.",
                [
                    per_second("eta_draft_tokens_total", "drafted"),
                    per_second("eta_draft_tokens_accepted_total", "right"),
                    per_second("eta_draft_steps_saved_total", "steps saved"),
                    per_second("eta_draft_rows_total", "guessed with sparser reads"),
                ],
            ),
            row("Steps"),
            series(
                "Duration of a step",
                "By what the step had to do.",
                quantiles(step, by=("phase",)),
                unit="s",
            ),
            heatmap("Duration of a step, distribution", "Steps per bucket.", step),
            series(
                "Requests in a step", "Without steps of calibration passes.", quantiles("eta_step_batch_size")
            ),
            series("Tokens of a step", "Of prompts and of answers.", quantiles("eta_step_tokens")),
            series(
                "Calibration passes",
                "Sequences of calibrations, which are measured beside the requests.",
                [
                    target("sum(eta_calibration_passes_running)", "running"),
                    target("sum(eta_calibration_passes_waiting)", "waiting"),
                ],
            ),
            series(
                "Rows of calibration passes",
                "Tokens per second that calibrations measure.",
                [per_second("eta_calibration_pass_rows_total", "rows")],
            ),
            row("Memory"),
            series(
                "KV cache blocks",
                "Used: held by requests. Cached: kept for their prefix only, given "
                "up when others need them. Free: empty.",
                [target("sum by (state) (eta_kv_cache_blocks)", "{{state}}")],
                stack=True,
            ),
            series(
                "KV cache in use",
                "By server.",
                [target("eta_kv_cache_usage_ratio", "{{instance}}")],
                unit="percentunit",
                high=1,
            ),
            series(
                "Memory",
                "Resident, by server.",
                [target("process_resident_memory_bytes", "{{instance}}")],
                unit="bytes",
            ),
            series(
                "Memory of the limit",
                "Share of what the process may use; above "
                "--max_memory_fraction calls are refused.",
                [target("eta_memory_used_ratio", "{{instance}}")],
                unit="percentunit",
                high=1,
            ),
            series(
                "Processor",
                "Cores in use, by server.",
                [target("rate(process_cpu_seconds_total[$__rate_interval])", "{{instance}}")],
            ),
            series(
                "Open files",
                "Connections among them, by server.",
                [target("process_open_fds", "{{instance}}")],
            ),
            row("Servers"),
            table(
                "Servers",
                "What each serves.",
                [
                    table_target("eta_model_info"),
                    table_target("eta_build_info"),
                    table_target("eta_kv_cache_config_info"),
                    table_target("eta_model_load_duration_seconds"),
                    table_target('eta_devices{state="working"}'),
                    table_target('eta_devices{state="lost"}'),
                ],
                hide=("Value #A", "Value #B", "Value #C", "job", "fingerprint", "state"),
                units={"Load time": "s"},
                rename={
                    "instance": "Instance",
                    "model": "Model",
                    "version": "Version",
                    "backend": "Backend",
                    "block_size": "Block size",
                    "num_gpu_blocks": "Blocks",
                    "dtype": "KV type",
                    "index": "Index kind",
                    "index_dtype": "Index type",
                    "layers": "Layers",
                    "query_heads": "Query heads",
                    "kv_heads": "KV heads",
                    "Value #D": "Load time",
                    "Value #E": "Devices",
                    "Value #F": "Lost devices",
                },
            ),
        ],
    )
