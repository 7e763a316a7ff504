// The catalogue of metrics as a page for people.
#include <algorithm>
#include <cstddef>
#include <initializer_list>

#include "service/telemetry/metric_catalogue.h"

namespace eta {
namespace {

constexpr char kPreamble[] =
    R"(# Metrics

The whole page that `eta-server` serves at `/metrics` (`--metrics_listen`). This file is the output
of `eta-server --print_metrics`; a test keeps it so.

Sums over all devices. Counters and histograms start at 0 with the process. A call is counted before
its client sees the status, an answer before its last message is sent. A density is the rate of one
counter over that of another, never an average of averages: head density is
`rate(eta_attention_keys_attended_total) / rate(eta_attention_keys_eligible_total)`, union density
`rate(eta_attention_keys_read_total) / rate(eta_attention_keys_cached_total)`.

| Label | Values |
|---|---|
| `model` | the served model's name; every metric has it but `eta_engine_state`, `eta_uptime_seconds`, `eta_build_info`, `process_...` and `exposer_...` |
| `mode` | `full`, `dynamic`, `profile`; `none` before it is known |
| `profile`, `tenant` | names; `none` without one; `other` for names without a label of their own |
| `version` | of the profile; `none` without a profile; `other` beyond as many versions |
| `finish_reason` | `stop_token`, `end_of_text`, `stop_string`, `length`, `cut_off`; `none` without an answer |
| `format` | `json_schema`, `json_object`, `regex`, `grammar`, `choice`, `structural_tag` |

Names that `--metrics_profiles` and `--metrics_tenants` list have labels of their own. Without these
flags the `--metrics_label_limit` names that were used last have them: a new name takes the label of
the name that has been idle for longest, if that is more than ten minutes. The series of the old
label then leave the page, and begin at 0 if the name comes back. Series without these labels never
fall: `eta_calls_total` counts all calls, and `eta_tenant_attention_...` all profiles of a tenant
while that has its label.
)";

constexpr char kOtherNames[] =
    R"(
## Other names

With `--metrics_names vllm` endpoint pickers of inference gateways find these series under the names
that they know. The label `model` is `model_name` there. Series about adapters are left out: there
are none.

)";

constexpr char kLeftOut[] =
    R"(
## Left out

Nothing here stands behind what some other servers show: waiting requests by reason (there is one
queue), replays of CUDA graphs, profiles in a GPU's memory (`eta_profile_info` tells those in the
host's), labels `layer` and `head` (`etactl stats --layers` has their figures), and the GPU's own
figures (NVIDIA's DCGM exporter has them).
)";

}  // namespace

std::string MetricCatalogueMarkdown() {
  std::string text = kPreamble;
  const auto append = [&text](std::initializer_list<std::string_view> parts) {
    for (const std::string_view part : parts) text += part;
  };
  for (const MetricGroup& group : MetricCatalogue()) {
    append({"\n## ", group.title,
            "\n\n| Metric | Type | Further labels | Meaning |\n|---|---|---|---|\n"});
    for (const Metric& metric : group.metrics) {
      // Those that stand behind `model`, if that is there: it comes first.
      std::string_view further = metric.labels;
      if (further.starts_with("model")) further.remove_prefix(std::min(further.size(), size_t{6}));
      std::string labels;
      for (const char c : further) labels += c == ',' ? std::string(", ") : std::string(1, c);
      append({"| `", metric.name, "` | ", Name(metric.type), " | ", labels, " | ", metric.help,
              " |\n"});
    }
  }
  append({kOtherNames, "| Name | Of |\n|---|---|\n"});
  for (const MetricAlias& alias : VllmNames()) {
    append({"| `", alias.name, "` | `", alias.of, "` |\n"});
  }
  return text + kLeftOut;
}

}  // namespace eta
