#include "engine/front/request_intake.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/chat/tools/form_probe.h"
#include "engine/request/chat_validation.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

const char* PromptField(const Request& request) {
  if (std::holds_alternative<std::string>(request.prompt)) return "text";
  return std::holds_alternative<Chat>(request.prompt) ? "chat" : "token_ids";
}

// What of the request is to blame where prompt and least_tokens() are too much together.
const char* LongestField(const char* prompt_field, const StoppingOptions& stopping) {
  if (!stopping.fit_max_tokens) return "stopping.max_tokens";
  return stopping.min_tokens > 0 ? "stopping.min_tokens" : prompt_field;
}

// Refuses a request that could never run: its tenant's limit is below what it needs alone.
absl::Status CheckShare(const char* prompt_field, int64_t prompt_tokens,
                        const StoppingOptions& stopping, const TenantShare& share) {
  const int64_t tokens = prompt_tokens + stopping.least_tokens();
  if (share.max_kv_tokens == 0 || tokens <= share.max_kv_tokens) return absl::OkStatus();
  const char* const field = LongestField(prompt_field, stopping);
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat(field, ": ", prompt_tokens, " tokens of the prompt and ",
                                stopping.least_tokens(),
                                " of the answer exceed what the tenant may hold in the KV cache"),
                   {.reason = "TENANT_KV",
                    .field = field,
                    .metadata = {{"tokens", absl::StrCat(tokens)},
                                 {"quota", "max_kv_tokens"},
                                 {"limit", absl::StrCat(share.max_kv_tokens)}}});
}

// As CheckContext, but of a length that nobody named it says nothing.
absl::Status CheckRoom(const char* prompt_field, int64_t tokens, const StoppingOptions& stopping,
                       const Limits& limits, bool at_least = false) {
  const absl::Status status = CheckContext(tokens, stopping.least_tokens(), limits, at_least);
  if (status.ok() || !stopping.fit_max_tokens) return status;
  ErrorDetail detail = GetErrorDetail(status);
  detail.field = LongestField(prompt_field, stopping);
  return MakeError(status.code(),
                   absl::StrCat(detail.field, ": ", at_least ? "at least " : "", tokens,
                                " prompt tokens leave no room for an answer of ",
                                stopping.least_tokens(), " in the context of ", limits.max_context),
                   std::move(detail));
}

// What `bound` leaves beside the prompt. Too little bounds nothing: who refuses it says so better.
int64_t Left(int64_t bound, int64_t prompt_tokens, const StoppingOptions& stopping) {
  const bool enough = prompt_tokens + stopping.least_tokens() <= bound;
  return enough ? bound - prompt_tokens : std::numeric_limits<int64_t>::max();
}

void KeepLast(std::optional<int32_t> count, std::vector<int32_t>& tokens) {
  if (!count || tokens.size() <= static_cast<size_t>(*count)) return;
  tokens.erase(tokens.begin(), tokens.end() - *count);
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
  const int64_t most = request.keep_last.value_or(std::numeric_limits<int32_t>::max());
  return std::min(most, LeastTokensOf(request));
}

int64_t RequestIntake::LeastTokensOf(const Request& request) const {
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    return LeastTokens(text->size(), info_);
  }
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&request.prompt)) {
    return static_cast<int64_t>(ids->size());
  }
  return 1 + TokensIn(std::get<Chat>(request.prompt));
}

absl::Status RequestIntake::CheckLeastContext(const Request& request, int64_t least_tokens) const {
  return CheckRoom(PromptField(request), least_tokens, request.stopping, limits_,
                   /*at_least=*/!std::holds_alternative<std::vector<int32_t>>(request.prompt));
}

absl::StatusOr<std::vector<int32_t>> RequestIntake::EncodeChat(const Chat& chat,
                                                               Request& request) const {
  ASSIGN_OR_RETURN(const auto rendered, chats_.Render(chat));
  request.in_reasoning = EndsInReasoning(chats_.form(), rendered);
  // Before tokens are made of what could not be served.
  if (const int64_t bytes = TextBytes(rendered); bytes > 0) {
    RETURN_IF_ERROR(CheckLeastContext(
        request, LeastTokens(static_cast<size_t>(bytes), info_) + TokensIn(chat)));
  }
  auto tokens = chats_.Encode(rendered, chat);
  if (absl::IsInvalidArgument(tokens.status())) return InMessages(chat, tokens.status());
  return tokens;
}

// Names the message that cannot be encoded, and the place in it, if one is to blame: the template
// may leave out what another one lacks a token for.
absl::Status RequestIntake::InMessages(const Chat& chat, const absl::Status& status) const {
  const auto cause = GetErrorDetail(status).metadata;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (chat.messages[i].token_ids) continue;
    const auto alone = tokenizer_.Encode(chat.messages[i].content, /*add_bos=*/false);
    if (alone.ok() || GetErrorDetail(alone.status()).metadata != cause) continue;
    return InField(absl::StrCat("chat.messages[", i, "].text"), alone.status());
  }
  return status;
}

absl::StatusOr<std::vector<int32_t>> RequestIntake::Encode(Request& request) const {
  const char* const field = PromptField(request);
  std::vector<int32_t> tokens;
  if (const auto* chat = std::get_if<Chat>(&request.prompt)) {
    ASSIGN_OR_RETURN(tokens, EncodeChat(*chat, request));
  } else {
    auto encoded = tokenizer_.Encode(std::get<std::string>(request.prompt), request.add_beginning,
                                     request.parse_special);
    if (!encoded.ok()) return InField(field, encoded.status());
    tokens = *std::move(encoded);
  }
  if (tokens.empty()) return InvalidField(field, "the model's tokenizer makes no token of it");
  const std::optional<size_t> outside = FirstOutside(tokens, info_.config.vocab_size);
  if (!outside) return tokens;
  return InvalidField(field,
                      absl::StrCat("token ", tokens[*outside], " at ", *outside,
                                   " is outside of the vocabulary of ", info_.config.vocab_size));
}

absl::StatusOr<PreparedRequest> RequestIntake::Prepare(Request request) const {
  PreparedRequest prepared;
  const Clock::time_point now = Clock::now();
  prepared.arrival = request.arrival.value_or(now);
  if (request.deadline == Clock::time_point::max()) {
    request.deadline = prepared.arrival + limits_.default_deadline;
  }
  RETURN_IF_ERROR(Validate(request, now));
  const int64_t least_tokens = LeastPromptTokens(request);
  RETURN_IF_ERROR(CheckLeastContext(request, least_tokens));
  const char* const field = PromptField(request);
  if (auto* ids = std::get_if<std::vector<int32_t>>(&request.prompt)) {
    prepared.prompt = std::move(*ids);
  } else {
    ASSIGN_OR_RETURN(prepared.prompt, Encode(request));
  }
  KeepLast(request.keep_last, prepared.prompt);
  request.prompt = std::vector<int32_t>();  // neither text nor chat is needed any more
  const int64_t tokens = prepared.prompt_tokens();
  RETURN_IF_ERROR(CheckRoom(field, tokens, request.stopping, limits_));
  RETURN_IF_ERROR(CheckShare(field, tokens, request.stopping, request.share));
  FitMaxTokens(tokens, request);
  prepared.request = std::move(request);
  return prepared;
}

void RequestIntake::FitMaxTokens(int64_t prompt_tokens, Request& request) const {
  StoppingOptions& stopping = request.stopping;
  if (!stopping.fit_max_tokens) return;
  const TenantShare& share = request.share;
  int64_t most = std::min(stopping.max_tokens, limits_.max_output_tokens);
  for (const int64_t bound :
       {int64_t{limits_.max_context}, share.max_kv_tokens, share.burst_tokens, info_.pool_tokens}) {
    if (bound > 0) most = std::min(most, Left(bound, prompt_tokens, stopping));
  }
  stopping.max_tokens = static_cast<int32_t>(most);
  stopping.fit_max_tokens = false;
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
