// Conversion between the messages of vllm.grpc.engine's Generate and the engine's structs. This
// file and its source are all that knows what zero and absent mean there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/request/answers/answer_format.h"
#include "engine/request/limits.h"
#include "engine/request/request.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace eta {

namespace vllm_pb = ::vllm::grpc::engine;

inline constexpr std::string_view kVllmEngine = "vllm.grpc.engine.VllmEngine";  // the service

inline constexpr int32_t kMaxAnswers = 16;  // of one request

// Metadata of a call, and of its end: how it attends.
inline constexpr char kAttentionKey[] = "x-eta-attention";

struct VllmRequest {
  Request request;                     // answer i's seed is i more
  std::optional<AnswerFormat> format;  // of each answer
  int32_t answers = 1;
  bool stream = false;
};

// Takes what the fields say; ValidateRequest and ValidateFormat judge the values. Errors are those
// of the form alone: no prompt, a request id that cannot be one, a number of answers or choices out
// of bounds, and, by name, what this server does not do: media, KV transfer, a rank. `most_tokens`:
// of an answer whose length nobody named. Left to the caller: tenant, deadline, attention, an
// absent request id.
absl::StatusOr<VllmRequest> ToRequest(const vllm_pb::GenerateRequest& message, const Limits& limits,
                                      int32_t most_tokens);

// An error about a field of the request, which is named as that API spells it.
absl::Status InVllmFields(const absl::Status& status, const SamplingOptions& sampling);

// The tokens of a delta, at the end of what is there.
void AppendTokens(const DeltaEvent& event, const OutputOptions& options,
                  google::protobuf::RepeatedField<uint32_t>& ids,
                  vllm_pb::OutputLogProbs* logprobs);
// Of the prompt, whose first token has none.
void AppendPrompt(std::span<const TokenDetail> details, const OutputOptions& options,
                  int32_t first_id, vllm_pb::InputLogProbs& logprobs);
// The reason, what matched and the counts.
void SetEnd(const FinishedEvent& event, vllm_pb::GenerateComplete& complete);

// Appends `next` to `last` if both are chunks of one answer; false: they cannot be one message.
bool Merge(vllm_pb::GenerateResponse& last, const vllm_pb::GenerateResponse& next);

}  // namespace eta
