#include "engine/base/error.h"

#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace eta {
namespace {

constexpr char kDetailUrl[] = "type.eta/ErrorDetail";
// The payload: lines KEY=VALUE, values escaped as in C. Not JSON, whose library's destructor
// allocates: errors are made where memory is short, too.
constexpr char kReason[] = "reason";
constexpr char kField[] = "field";
constexpr char kRetryAfter[] = "retry_after_ms";
constexpr char kMetadata[] = "metadata.";
constexpr char kUnlogged[] = "unlogged";
constexpr char kInvalidField[] = "INVALID_FIELD";

absl::Status Invalid(const std::string& field, const std::string& sentence, ErrorDetail detail) {
  detail.reason = kInvalidField;
  detail.field = field;
  return MakeError(absl::StatusCode::kInvalidArgument, field + ": " + sentence, std::move(detail));
}

void AddLine(std::string& payload, std::string_view key, const std::string& value) {
  payload.append(key).append("=").append(absl::CEscape(value)).append("\n");
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, const std::string& message, ErrorDetail detail) {
  absl::Status status(code, message);
  std::string payload;
  AddLine(payload, kReason, detail.reason);
  if (!detail.field.empty()) AddLine(payload, kField, detail.field);
  for (const auto& [key, value] : detail.metadata) AddLine(payload, kMetadata + key, value);
  if (detail.retry_after) {
    AddLine(payload, kRetryAfter, absl::StrCat(detail.retry_after->count()));
  }
  if (!detail.unlogged.empty()) AddLine(payload, kUnlogged, detail.unlogged);
  status.SetPayload(kDetailUrl, absl::Cord(payload));
  return status;
}

absl::Status InvalidField(const std::string& field, const std::string& sentence) {
  return Invalid(field, sentence, {});
}

absl::Status UnknownChoice(const std::string& field) {
  return InvalidField(field, "this value is not known to this server");
}

absl::Status UnsupportedByModel(const std::string& field, const std::string& sentence) {
  return MakeError(absl::StatusCode::kFailedPrecondition, absl::StrCat(field, ": ", sentence),
                   {.reason = "UNSUPPORTED_BY_MODEL", .field = field});
}

absl::Status InField(const std::string& field, const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  ErrorDetail detail = GetErrorDetail(status);
  if (!detail.reason.empty() && detail.reason != kInvalidField) return status;
  std::string sentence(status.message());
  const std::string named = detail.field + ": ";
  if (!detail.field.empty() && sentence.starts_with(named)) sentence.erase(0, named.size());
  return Invalid(field, sentence,
                 {.metadata = std::move(detail.metadata), .unlogged = std::move(detail.unlogged)});
}

absl::Status DeadlinePassed(bool started) {
  return MakeError(absl::StatusCode::kDeadlineExceeded,
                   started ? "deadline: passed while the request was running"
                           : "deadline: passed while the request was queued",
                   {.reason = started ? "DEADLINE_DECODING" : "DEADLINE_QUEUED"});
}

ErrorDetail GetErrorDetail(const absl::Status& status) {
  ErrorDetail detail;
  const auto payload = status.GetPayload(kDetailUrl);
  if (!payload) return detail;
  const std::string text(*payload);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const size_t equals = line.find('=');
    std::string value;
    if (equals == std::string::npos || !absl::CUnescape(line.substr(equals + 1), &value)) continue;
    const std::string key = line.substr(0, equals);
    int64_t milliseconds = 0;
    if (key == kReason) {
      detail.reason = std::move(value);
    } else if (key == kField) {
      detail.field = std::move(value);
    } else if (key == kUnlogged) {
      detail.unlogged = std::move(value);
    } else if (key == kRetryAfter && absl::SimpleAtoi(value, &milliseconds)) {
      detail.retry_after = std::chrono::milliseconds(milliseconds);
    } else if (key.rfind(kMetadata, 0) == 0) {
      detail.metadata[key.substr(sizeof(kMetadata) - 1)] = std::move(value);
    }
  }
  return detail;
}

}  // namespace eta
