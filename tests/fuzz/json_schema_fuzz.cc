// A JSON schema, a NUL, and an answer: the schema is refused in a readable sentence, or said anew
// as JSON; the answer is valid, or a readable sentence says what it breaks. A JSON text that the
// library reads is read here too.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/format/schema/answer_check.h"
#include "engine/format/schema/json/json_text.h"
#include "engine/format/schema/schema_check.h"
#include "nlohmann/json.hpp"
#include "tests/testing/fuzz/checked_error.h"

namespace {

using eta::fuzz::Require;

void RequireReadable(const absl::Status& status, absl::StatusCode code) {
  eta::fuzz::RequireReadable(status);
  Require(status.code() == code);
  const std::string place = eta::GetErrorDetail(status).unlogged;
  Require(!eta::FirstInvalidUtf8(place) && place.size() <= eta::fuzz::kMaxErrorBytes);
}

void CheckReader(std::string_view text) {
  const bool read =
      eta::schema::JsonText::Parse(text, {.max_bytes = 1 << 20, .max_depth = 1 << 20}).ok();
  // The library takes a NUL for the end.
  if (text.find('\0') == std::string_view::npos && nlohmann::json::accept(text)) Require(read);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view schema = input.substr(0, end);
  const std::string_view answer = input.substr(std::min(end + 1, input.size()));
  CheckReader(answer);
  const auto enforceable = eta::EnforceableSchema(schema);
  if (enforceable.ok()) {
    Require(nlohmann::json::accept(*enforceable));
  } else {
    RequireReadable(enforceable.status(), absl::StatusCode::kInvalidArgument);
  }
  const absl::Status status = eta::CheckAnswer(schema, answer);
  if (status.ok()) return 0;
  // Of a schema that has not passed, too: it is no more than a wrong answer then.
  const bool refused = !enforceable.ok() && status.code() == absl::StatusCode::kInvalidArgument;
  RequireReadable(status, refused ? status.code() : absl::StatusCode::kInternal);
  return 0;
}
