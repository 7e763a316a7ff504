#include "engine/request_intake.h"

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
  return static_cast<int64_t>(std::get<1>(request.prompt).size());
}

absl::Status RequestIntake::CheckLeastContext(const Request& request, int64_t least_tokens) const {
  return CheckContext(least_tokens, request.stopping.max_tokens, limits_,
                      /*at_least=*/std::holds_alternative<std::string>(request.prompt));
}

absl::StatusOr<PreparedRequest> RequestIntake::Prepare(Request request) const {
  PreparedRequest prepared;
  prepared.arrival = Clock::now();
  RETURN_IF_ERROR(Validate(request, prepared.arrival));
  const int64_t least_tokens = LeastPromptTokens(request);
  RETURN_IF_ERROR(CheckLeastContext(request, least_tokens));
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    auto encoded = tokenizer_.Encode(*text, /*add_bos=*/true, request.parse_special);
    if (!encoded.ok()) return encoded.status();
    prepared.prompt = *std::move(encoded);
    request.prompt = std::vector<int32_t>();  // the text is needed no more
  } else {
    prepared.prompt = std::move(std::get<1>(request.prompt));
  }
  const int32_t max_tokens = request.stopping.max_tokens;
  const int64_t tokens = prepared.prompt_tokens();
  RETURN_IF_ERROR(CheckContext(tokens, max_tokens, limits_));
  RETURN_IF_ERROR(CheckShare(tokens + max_tokens, request.share));
  if (request.deadline == Clock::time_point::max()) {
    request.deadline = prepared.arrival + limits_.default_deadline;
  }
  prepared.request = std::move(request);
  return prepared;
}

}  // namespace eta
