// Any bytes as a Generate request of vllm.grpc.engine: refused in a readable sentence that names a
// field of that API, or valid for the engine within the adapter's own limits.
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/error.h"
#include "engine/request/answers/format_validation.h"
#include "engine/request/request_validation.h"
#include "service/vllm/convert_vllm.h"
#include "tests/testing/fuzz/checked_error.h"
#include "tests/testing/fuzz/message_filler.h"

namespace {

using eta::fuzz::Require;
using eta::fuzz::RequireReadable;

constexpr int32_t kMostTokens = 4096;

eta::EngineInfo Model() {
  eta::EngineInfo info{};
  info.config.vocab_size = 100;
  info.config.num_layers = 2;
  info.config.num_query_heads = 4;
  info.config.num_kv_heads = 2;
  return info;
}

bool OfThatApi(const std::string& field) {
  for (const char* const ours :
       {"sampling.", "stopping.", "output.", "token_ids", "attention.", "chat", "format"}) {
    if (field.starts_with(ours)) return false;
  }
  return !field.empty();
}

void RequireRefusal(const absl::Status& status) {
  RequireReadable(status);
  Require(OfThatApi(eta::GetErrorDetail(status).field));
}

// An answer in two chunks, of the request's ids, whose tokens have as many alternatives as asked
// for.
void CheckAnswer(const std::vector<int32_t>& ids, const eta::OutputOptions& options) {
  eta::DeltaEvent delta;
  delta.ids = ids;
  for (const int32_t id : ids) {
    eta::TokenDetail token;
    token.id = id;
    token.logprob = -1.0f;
    token.top.resize(static_cast<size_t>(options.logprobs.value_or(0)),
                     {.id = id, .logprob = -1.0f});
    delta.logprobs.push_back(token);
  }
  eta::vllm_pb::GenerateResponse chunks[2];
  for (eta::vllm_pb::GenerateResponse& chunk : chunks) {
    eta::vllm_pb::GenerateStreamChunk& to = *chunk.mutable_chunk();
    eta::AppendTokens(delta, options, *to.mutable_token_ids(), to.mutable_output_logprobs());
    Require(static_cast<size_t>(to.token_ids_size()) == ids.size());
    Require(to.output_logprobs().token_ids_size() == (options.logprobs ? to.token_ids_size() : 0));
  }
  Require(eta::Merge(chunks[0], chunks[1]));
  Require(static_cast<size_t>(chunks[0].chunk().token_ids_size()) == 2 * ids.size());
  eta::vllm_pb::InputLogProbs prompt;
  for (int part = 0; part < 2; ++part) {
    eta::AppendPrompt(delta.logprobs, options, ids.front(), prompt);
  }
  Require(static_cast<size_t>(prompt.token_ids_size()) == 2 * ids.size() + 1);
  for (const eta::FinishReason reason : {eta::FinishReason::kLength, eta::FinishReason::kStopString,
                                         eta::FinishReason::kStopToken}) {
    eta::FinishedEvent finished;
    finished.reason = reason;
    finished.matched_id = ids.front();
    finished.matched_stop = "stop";
    eta::vllm_pb::GenerateComplete complete;
    eta::SetEnd(finished, complete);
    Require(complete.finish_reason() == (reason == eta::FinishReason::kLength ? "length" : "stop"));
  }
  Require(!eta::Merge(chunks[0], eta::vllm_pb::GenerateResponse()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const eta::EngineInfo model = Model();
  const eta::Limits limits;
  eta::fuzz::InputReader reader(data, size);
  eta::vllm_pb::GenerateRequest message;
  if (!eta::fuzz::ReadMessage(reader, message)) return 0;

  auto converted = eta::ToRequest(message, limits, kMostTokens);
  if (!converted.ok()) {
    RequireRefusal(converted.status());
    return 0;
  }
  if (converted->format) {
    const absl::Status valid = eta::ValidateFormat(*converted->format);
    if (!valid.ok()) RequireRefusal(eta::InVllmFields(valid, eta::SamplingOptions()));
  }
  Require(converted->answers >= 1 && converted->answers <= eta::kMaxAnswers);
  eta::Request& request = converted->request;
  request.id = "drawn";
  Require(request.keep_last.value_or(1) >= 1);
  const absl::Status valid = eta::ValidateRequest(request, model, limits);
  if (!valid.ok()) {
    RequireRefusal(eta::InVllmFields(valid, request.sampling));
    return 0;
  }
  const auto* ids = std::get_if<std::vector<int32_t>>(&request.prompt);
  Require(ids == nullptr || (!ids->empty() && !request.parse_special));
  if (ids != nullptr) CheckAnswer(*ids, request.output);
  Require(request.output.ids && request.output.end_id && !request.output.text);
  Require(request.stopping.fit_max_tokens == !message.sampling_params().has_max_tokens());
  Require(message.sampling_params().top_p() != 0.0f || request.sampling.top_p == 1.0f);
  return 0;
}
