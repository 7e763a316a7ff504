#include "engine/error.h"

#include <utility>

#include "absl/strings/cord.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

constexpr char kDetailUrl[] = "type.eta/ErrorDetail";

}  // namespace

absl::Status MakeError(absl::StatusCode code, const std::string& message, ErrorDetail detail) {
  absl::Status status(code, message);
  nlohmann::json json = {
      {"reason", detail.reason}, {"field", detail.field}, {"metadata", detail.metadata}};
  if (detail.retry_after) json["retry_after_ms"] = detail.retry_after->count();
  using Json = nlohmann::json;
  status.SetPayload(kDetailUrl,
                    absl::Cord(json.dump(-1, ' ', true, Json::error_handler_t::replace)));
  return status;
}

absl::Status InvalidField(const std::string& field, const std::string& sentence) {
  return MakeError(absl::StatusCode::kInvalidArgument, field + ": " + sentence,
                   {.reason = "INVALID_FIELD", .field = field});
}

ErrorDetail GetErrorDetail(const absl::Status& status) {
  ErrorDetail detail;
  const auto payload = status.GetPayload(kDetailUrl);
  if (!payload) return detail;
  const auto json = nlohmann::json::parse(std::string(*payload), nullptr, false);
  if (!json.is_object()) return detail;
  detail.reason = json.value("reason", "");
  detail.field = json.value("field", "");
  detail.metadata = json.value("metadata", std::map<std::string, std::string>{});
  if (json.contains("retry_after_ms")) {
    detail.retry_after = std::chrono::milliseconds(json["retry_after_ms"].get<int64_t>());
  }
  return detail;
}

}  // namespace eta
