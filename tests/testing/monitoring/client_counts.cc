#include "tests/testing/monitoring/client_counts.h"

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"

namespace eta::testing {
namespace {

std::string Label(v1::FinishReason reason) {
  const std::string name = v1::FinishReason_Name(reason);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "FINISH_REASON_"));
}

}  // namespace

void AttentionCounts::Add(const v1::Finished& finished) {
  const v1::AttentionStats& stats = finished.attention();
  answers += 1;
  answers_with_decode += stats.decode_steps() > 0 ? 1 : 0;
  output_tokens += finished.usage().output_tokens();
  decode_rows += stats.decode_steps();
  keys_attended += stats.keys_attended();
  keys_eligible += stats.keys_eligible();
  keys_read += stats.keys_read();
  keys_cached += stats.keys_cached();
  values_read += stats.values_read();
  prefill_steps += stats.prefill_steps();
  prefill_keys_attended += stats.prefill_keys_attended();
  prefill_keys_eligible += stats.prefill_keys_eligible();
  kv_bytes_read += stats.kv_bytes_read();
  kv_bytes_dense += stats.kv_bytes_dense();
  index_bytes_read += stats.index_bytes_read();
  head_density += stats.head_density() * static_cast<double>(stats.decode_steps());
  union_density += stats.union_density() * static_cast<double>(stats.decode_steps());
}

void ClientCounts::CountCall(const MetricLabels& labels) {
  const std::lock_guard lock(mutex_);
  ++calls[labels];
}

void ClientCounts::CountAnswer(const std::string& tenant, const std::string& mode,
                               const std::string& profile, const v1::Finished& finished) {
  // Every profile that is told apart has one version.
  const std::string version = profile == "none" || profile == "other" ? profile : "1";
  const std::lock_guard lock(mutex_);
  ++calls[{{"method", "Generate"},
           {"code", "OK"},
           {"finish_reason", Label(finished.finish_reason())},
           {"mode", mode},
           {"profile", profile},
           {"version", version},
           {"tenant", tenant}}];
  TokenCounts& sums = tokens[{{"tenant", tenant}, {"profile", profile}, {"version", version}}];
  sums.prompt += finished.usage().prompt_tokens();
  sums.cached += finished.usage().cached_tokens();
  sums.output += finished.usage().output_tokens();
  attention[{{"mode", mode}, {"profile", profile}, {"version", version}, {"tenant", tenant}}].Add(
      finished);
  tenants[{{"tenant", tenant}}].Add(finished);
  preemptions += finished.preemptions();
  drafts.set_drafted(drafts.drafted() + finished.drafts().drafted());
  drafts.set_accepted(drafts.accepted() + finished.drafts().accepted());
  drafts.set_steps_saved(drafts.steps_saved() + finished.drafts().steps_saved());
  drafts.set_kv_bytes_rejected(drafts.kv_bytes_rejected() + finished.drafts().kv_bytes_rejected());
  drafts.set_made(drafts.made() + finished.drafts().made());
  drafts.set_kv_bytes_made(drafts.kv_bytes_made() + finished.drafts().kv_bytes_made());
}

void ClientCounts::CountRefusal(const MetricLabels& labels, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  ++calls[labels];
  ++refusals[{{"method", labels.at("method")}, {"reason", reason}}];
}

}  // namespace eta::testing
