// Checks a request against the model and the limits before any work is done for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/model/model_config.h"
#include "engine/request/engine_info.h"
#include "engine/request/limits.h"
#include "engine/request/request.h"

namespace eta {

// Every bound stated in request.h, UTF-8 of text fields, token ids against the vocabulary. The
// first violation is returned as InvalidField, or FAILED_PRECONDITION where the model lacks what is
// asked (dynamic thresholds, drafts by sparser reads, a floor or tempered keys of a model without
// them; of a chat, CHAT_UNSUPPORTED).
// Prompt length in tokens is not known here: CheckContext does that after tokenising.
absl::Status ValidateRequest(const Request& request, const EngineInfo& model, const Limits& limits);

// FAILED_PRECONDITION for kSelf of a model whose rows select no blocks.
absl::Status CheckSpeculation(Speculation speculation, const ModelConfig& config);

// The part of it about attention; of a profile ValidateProfile (profile_validation.h).
absl::Status ValidateAttention(const AttentionChoice& choice, const EngineInfo& model);

// Text that is to become tokens: its bounds and its UTF-8, as of a request's prompt.
absl::Status ValidateText(std::string_view text, const Limits& limits);

// Token ids that are to become text: at most limits.max_context, all of the vocabulary.
absl::Status ValidateTokenIds(std::span<const int32_t> ids, const EngineInfo& model,
                              const Limits& limits);

// The place of the first id that the vocabulary does not have.
std::optional<size_t> FirstOutside(std::span<const int32_t> ids, int32_t vocab_size);

// The same as InvalidField of its element, as stopping.stop_token_ids[3].
absl::Status CheckTokenIds(const std::string& field, std::span<const int32_t> ids,
                           int32_t vocab_size);

// FAILED_PRECONDITION for text that is to become tokens of a model that knows ids only.
absl::Status NoTextError();

// FAILED_PRECONDITION, naming the field, for a request that needs text of a model whose tokenizer
// the engine does not read: a prompt as text, stop strings, or an answer without token ids.
absl::Status RequireIdsOnly(const Request& request);

// ASCII without spaces and control characters: what may stand in headers and logs.
bool IsPrintable(std::string_view text);

// The one rule for ids of requests, and InvalidField for one that breaks it.
bool IsRequestId(std::string_view id);
absl::Status CheckRequestId(const std::string& field, std::string_view id);

// How many tokens a text of so many bytes, over 0, has at least.
int64_t LeastTokens(size_t text_bytes, const EngineInfo& model);

// CONTEXT_TOO_LONG, with both numbers, if prompt + max_tokens passes limits.max_context.
// `at_least`: the prompt has so many or more.
absl::Status CheckContext(int64_t prompt_tokens, int64_t max_tokens, const Limits& limits,
                          bool at_least = false);

// `config`: of EngineInfo. REQUIRES: ValidateRequest passed.
ResolvedAttention ResolveAttention(const AttentionChoice& choice, const ModelConfig& config);

// What its rows read of the settings: what a client is told. Absent: not read, or z of heads that
// have their own.
AttentionSettings UsedSettings(const ResolvedAttention& resolved);

}  // namespace eta
