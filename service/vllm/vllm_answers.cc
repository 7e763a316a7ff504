#include "service/vllm/vllm_answers.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace eta {
namespace {

namespace pb = ::vllm::grpc::engine;

int32_t Clamped(int64_t value) {
  return static_cast<int32_t>(std::min<int64_t>(value, std::numeric_limits<int32_t>::max()));
}

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

}  // namespace

pb::GetModelInfoResponse VllmModelInfo(const EngineInfo& model, const Limits& limits,
                                       const std::string& name) {
  const ModelConfig& config = model.config;
  pb::GetModelInfoResponse message;
  // No folder of anybody's, and no name that a model hub could have: gateways look for either.
  message.set_model_path(absl::StrCat("/eta-server/", name));
  message.set_served_model_name(name);
  message.set_is_generation(true);
  message.set_max_context_length(static_cast<uint32_t>(limits.max_context));
  message.set_max_req_input_len(limits.max_context - 1);
  message.set_vocab_size(static_cast<uint32_t>(config.vocab_size));
  message.mutable_eos_token_ids()->Add(config.eos_ids.begin(), config.eos_ids.end());
  if (!config.eos_ids.empty()) message.set_pad_token_id(config.eos_ids.front());
  if (!model.beginning.empty()) message.set_bos_token_id(model.beginning.front());
  return message;
}

pb::GetServerInfoResponse VllmServerInfo(const EngineInfo& model, const EngineSnapshot& engine,
                                         std::chrono::duration<double> uptime) {
  pb::GetServerInfoResponse message;
  message.set_active_requests(static_cast<uint32_t>(engine.running + engine.waiting));
  message.set_uptime_seconds(uptime.count());
  message.set_server_type("vllm-grpc");
  message.set_data_parallel_size(1);
  message.set_kv_cache_dtype(std::string(Name(model.kv_dtype)));
  message.set_block_size(model.block_size);
  message.set_attention_backend("eta");
  message.set_max_num_seqs(model.max_running);
  return message;
}

pb::GetLoadsResponse VllmLoads(const EngineInfo& model, const EngineSnapshot& engine,
                               const TelemetrySnapshot& counted,
                               std::chrono::system_clock::time_point now) {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  for (const AccountSeries& account : counted.accounts) {
    prompt_tokens += account.prompt_tokens;
    cached_tokens += account.cached_tokens;
  }
  pb::GetLoadsResponse message;
  message.set_timestamp(
      absl::FormatTime(absl::RFC3339_sec, absl::FromChrono(now), absl::UTCTimeZone()));
  message.set_version(ETA_VERSION);
  message.set_dp_rank_count(1);
  pb::SchedulerLoad& load = *message.add_loads();
  load.set_num_running_reqs(engine.running);
  load.set_num_waiting_reqs(engine.waiting);
  load.set_num_total_reqs(engine.running + engine.waiting);
  load.set_num_used_tokens(
      Clamped(engine.blocks_used * model.pool_tokens / std::max(1, model.num_blocks)));
  load.set_max_total_num_tokens(Clamped(model.pool_tokens));
  load.set_token_usage(Share(engine.blocks_used, model.num_blocks));
  load.set_gen_throughput(counted.tokens_per_second);
  load.set_cache_hit_rate(Share(cached_tokens, prompt_tokens));
  load.set_utilization(Share(engine.running, model.max_running));
  load.set_max_running_requests(model.max_running);
  return message;
}

}  // namespace eta
