// What Tokenize and Detokenize answer.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/front/engine.h"
#include "eta/v1/tokenize.pb.h"

namespace eta {

// Tokens of the tenant's budget that making tokens of the prompt costs.
int64_t TokenizeCost(const v1::TokenizeRequest& message);

// Both take as long as the prompt is, and so want a thread that may. Left to the caller: `model`.
// Errors are those of Engine::Prepare and Engine::Detokenize, and those of the form: no prompt, a
// chat that ToChat refuses.
absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& message,
                                              const Engine& engine);
absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& message,
                                                  const Engine& engine);

}  // namespace eta
