#include "engine/intake/request_intake.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

// Refuses a request that could never run: its tenant's limit is below what it needs alone.
absl::Status CheckShare(int64_t tokens, const TenantShare& share) {
  if (share.max_kv_tokens == 0 || tokens <= share.max_kv_tokens) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "prompt and max_tokens together exceed what the tenant may hold in the KV cache",
                   {.reason = "TENANT_KV",
                    .field = "stopping.max_tokens",
                    .metadata = {{"tokens", absl::StrCat(tokens)},
                                 {"quota", "max_kv_tokens"},
                                 {"limit", absl::StrCat(share.max_kv_tokens)}}});
}

const char* PromptField(const Request& request) {
  if (std::holds_alternative<std::string>(request.prompt)) return "text";
  return std::holds_alternative<Chat>(request.prompt) ? "chat" : "token_ids";
}

// As CheckContext, but whoever named no length is told of the prompt alone.
absl::Status CheckRoom(const char* prompt_field, int64_t tokens, const StoppingOptions& stopping,
                       const Limits& limits, bool at_least = false) {
  const absl::Status status = CheckContext(tokens, stopping.least_tokens(), limits, at_least);
  if (status.ok() || !stopping.fit_max_tokens || stopping.min_tokens > 0) return status;
  ErrorDetail detail = GetErrorDetail(status);
  detail.field = prompt_field;
  return MakeError(
      status.code(),
      absl::StrCat(prompt_field, ": ", at_least ? "at least " : "", tokens,
                   " tokens leave no room for an answer in the context of ", limits.max_context),
      std::move(detail));
}

// REQUIRES: the context has room for stopping.least_tokens() beside the prompt.
void FitMaxTokens(int64_t prompt_tokens, const Limits& limits, StoppingOptions& stopping) {
  if (!stopping.fit_max_tokens) return;
  const auto left = static_cast<int32_t>(limits.max_context - prompt_tokens);
  stopping.max_tokens = std::min({stopping.max_tokens, limits.max_output_tokens, left});
  stopping.fit_max_tokens = false;
}

}  // namespace

absl::Status RequestIntake::Validate(const Request& request, Clock::time_point now) const {
  RETURN_IF_ERROR(ValidateRequest(request, info_, limits_));
  if (!tokenizer_.knows_text()) {
    RETURN_IF_ERROR(RequireIdsOnly(request));
  }
  if (request.deadline > now) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDeadlineExceeded, "deadline: already past",
                   {.reason = "DEADLINE_PASSED"});
}

int64_t RequestIntake::LeastPromptTokens(const Request& request) const {
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    return LeastTokens(text->size(), info_);
  }
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&request.prompt)) {
    return static_cast<int64_t>(ids->size());
  }
  return 1;
}

absl::Status RequestIntake::CheckLeastContext(const Request& request, int64_t least_tokens) const {
  return CheckRoom(PromptField(request), least_tokens, request.stopping, limits_,
                   /*at_least=*/!std::holds_alternative<std::vector<int32_t>>(request.prompt));
}

absl::StatusOr<std::vector<int32_t>> RequestIntake::Encode(const Request& request,
                                                           const Chat& chat) const {
  const auto rendered = chats_.Render(chat);
  if (!rendered.ok()) return rendered.status();
  // Before tokens are made of what could not be served.
  if (const int64_t bytes = TextBytes(*rendered); bytes > 0) {
    RETURN_IF_ERROR(CheckLeastContext(request, LeastTokens(static_cast<size_t>(bytes), info_)));
  }
  auto tokens = chats_.Encode(*rendered);
  if (absl::IsInvalidArgument(tokens.status())) return InMessages(chat, tokens.status());
  return tokens;
}

// Names the message that cannot be encoded, and the place in it, if one is to blame: the template
// may leave out what another one lacks a token for.
absl::Status RequestIntake::InMessages(const Chat& chat, const absl::Status& status) const {
  const auto cause = GetErrorDetail(status).metadata;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const auto alone = tokenizer_.Encode(chat.messages[i].content, /*add_bos=*/false);
    if (alone.ok() || GetErrorDetail(alone.status()).metadata != cause) continue;
    return InField(absl::StrCat("chat.messages[", i, "].text"), alone.status());
  }
  return status;
}

// The one check of what the engine gets, whatever it was made of.
absl::Status RequestIntake::CheckTokens(const std::vector<int32_t>& tokens,
                                        const std::string& field) const {
  if (tokens.empty()) return InvalidField(field, "the model's tokenizer makes no token of it");
  const auto outside = std::find_if(tokens.begin(), tokens.end(), [this](int32_t id) {
    return id < 0 || id >= info_.config.vocab_size;
  });
  if (outside == tokens.end()) return absl::OkStatus();
  return InvalidField(field,
                      absl::StrCat("token ", *outside, " at ", outside - tokens.begin(),
                                   " is outside of the vocabulary of ", info_.config.vocab_size));
}

absl::StatusOr<PreparedRequest> RequestIntake::Prepare(Request request) const {
  PreparedRequest prepared;
  prepared.arrival = Clock::now();
  RETURN_IF_ERROR(Validate(request, prepared.arrival));
  const int64_t least_tokens = LeastPromptTokens(request);
  RETURN_IF_ERROR(CheckLeastContext(request, least_tokens));
  const char* const field = PromptField(request);
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    auto encoded = tokenizer_.Encode(*text, request.add_beginning, request.parse_special);
    if (!encoded.ok()) return InField(field, encoded.status());
    prepared.prompt = *std::move(encoded);
  } else if (const auto* chat = std::get_if<Chat>(&request.prompt)) {
    auto encoded = Encode(request, *chat);
    if (!encoded.ok()) return encoded.status();
    prepared.prompt = *std::move(encoded);
  } else {
    prepared.prompt = std::move(std::get<1>(request.prompt));
  }
  RETURN_IF_ERROR(CheckTokens(prepared.prompt, field));
  request.prompt = std::vector<int32_t>();  // neither text nor chat is needed any more
  const int64_t tokens = prepared.prompt_tokens();
  RETURN_IF_ERROR(CheckRoom(field, tokens, request.stopping, limits_));
  FitMaxTokens(tokens, limits_, request.stopping);
  const int32_t max_tokens = request.stopping.max_tokens;
  RETURN_IF_ERROR(CheckShare(tokens + max_tokens, request.share));
  if (request.deadline == Clock::time_point::max()) {
    request.deadline = prepared.arrival + limits_.default_deadline;
  }
  prepared.request = std::move(request);
  return prepared;
}

absl::StatusOr<Detokenized> RequestIntake::Detokenize(std::span<const int32_t> ids,
                                                      bool special_tokens) const {
  if (!tokenizer_.knows_text()) return NoTextError();
  RETURN_IF_ERROR(ValidateTokenIds(ids, info_, limits_));
  Detokenized result;
  result.tokens.ends.reserve(ids.size());
  result.tokens.special.reserve(ids.size());
  for (const int32_t id : ids) {
    result.tokens.text += tokenizer_.ShownBytes(id);
    if (result.tokens.text.size() > static_cast<size_t>(limits_.max_prompt_bytes)) {
      return InvalidField(
          "token_ids.ids",
          absl::StrCat("stand for more than ", limits_.max_prompt_bytes, " bytes of text"));
    }
    result.tokens.ends.push_back(static_cast<int32_t>(result.tokens.text.size()));
    result.tokens.special.push_back(tokenizer_.IsSpecial(id));
  }
  result.text = tokenizer_.Decode(ids, special_tokens);
  return result;
}

}  // namespace eta
