// What a caller's thread does for a request before it is queued: checks it against the model and
// the limits, and makes tokens of its text or chat. See Engine::Check and Engine::Prepare.
//
// Thread-safe: it holds no state of its own. What it refers to must outlive it and stay as it is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/front/chat_prompts.h"
#include "engine/request/engine_info.h"
#include "engine/request/limits.h"
#include "engine/request/prepared_request.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {

class RequestIntake {
 public:
  RequestIntake(const EngineInfo& info, const Limits& limits, const Tokenizer& tokenizer,
                const ChatPrompts& chats)
      : info_(info), limits_(limits), tokenizer_(tokenizer), chats_(chats) {}

  // What can be told of a request from its fields alone. INVALID_ARGUMENT, FAILED_PRECONDITION as
  // of request_validation.h; DEADLINE_EXCEEDED (DEADLINE_PASSED).
  absl::Status Validate(const Request& request, Clock::time_point now) const;

  // The prompt's tokens; of a text the fewest that it can have; of a chat one beside those that it
  // brings along, since only its template knows what becomes of it. REQUIRES: it is valid.
  int64_t LeastPromptTokens(const Request& request) const;
  // CONTEXT_TOO_LONG for a prompt that so many tokens make too long.
  absl::Status CheckLeastContext(const Request& request, int64_t least_tokens) const;

  // Validates, makes tokens of the prompt and checks them and their number. Errors of
  // Engine::Prepare.
  absl::StatusOr<PreparedRequest> Prepare(Request request) const;

  // Errors of Engine::Detokenize.
  absl::StatusOr<Detokenized> Detokenize(std::span<const int32_t> ids, bool special_tokens) const;

 private:
  // Before any are cut off.
  int64_t LeastTokensOf(const Request& request) const;
  // Tokens of a text or a chat: at least one, all of the vocabulary. Sets in_reasoning.
  absl::StatusOr<std::vector<int32_t>> Encode(Request& request) const;
  absl::StatusOr<std::vector<int32_t>> EncodeChat(const Chat& chat, Request& request) const;
  absl::Status InMessages(const Chat& chat, const absl::Status& status) const;
  // Of a length that nobody named makes what every bound leaves beside the prompt.
  void FitMaxTokens(int64_t prompt_tokens, Request& request) const;

  const EngineInfo& info_;
  const Limits& limits_;
  const Tokenizer& tokenizer_;
  const ChatPrompts& chats_;
};

}  // namespace eta
