// What a caller's thread does for a request before it is queued: checks it against the model and
// the limits, and makes tokens of its text. See Engine::Check and Engine::Prepare.
//
// Thread-safe: it holds no state of its own. What it refers to must outlive it and stay as it is.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/request/engine_info.h"
#include "engine/request/limits.h"
#include "engine/request/prepared_request.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {

class RequestIntake {
 public:
  RequestIntake(const EngineInfo& info, const Limits& limits, const Tokenizer& tokenizer)
      : info_(info), limits_(limits), tokenizer_(tokenizer) {}

  // What can be told of a request from its fields alone. INVALID_ARGUMENT, FAILED_PRECONDITION as
  // of request_validation.h; DEADLINE_EXCEEDED (DEADLINE_PASSED).
  absl::Status Validate(const Request& request, Clock::time_point now) const;

  // The prompt's tokens; of a text the fewest that it can have. REQUIRES: it is valid.
  int64_t LeastPromptTokens(const Request& request) const;
  // CONTEXT_TOO_LONG for a prompt that so many tokens make too long.
  absl::Status CheckLeastContext(const Request& request, int64_t least_tokens) const;

  // Validates, makes tokens of the prompt and checks its length. Errors of Engine::Prepare.
  absl::StatusOr<PreparedRequest> Prepare(Request request) const;

 private:
  const EngineInfo& info_;
  const Limits& limits_;
  const Tokenizer& tokenizer_;
};

}  // namespace eta
