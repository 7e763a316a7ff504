// Any bytes as a Generate request of vllm.grpc.engine: refused in a readable sentence that names a
// field of that API, or valid for the engine within the adapter's own limits.
#include <cstdint>
#include <string>
#include <variant>

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
  Require(request.output.ids && request.output.end_id && !request.output.text);
  Require(request.stopping.fit_max_tokens == !message.sampling_params().has_max_tokens());
  Require(message.sampling_params().top_p() != 0.0f || request.sampling.top_p == 1.0f);
  return 0;
}
