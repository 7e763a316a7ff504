// lint: untrusted-input, fuzz-covered
#include "engine/base/json/json_fields.h"

#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/files/input_file.h"
#include "engine/base/json/json_check.h"

namespace eta {
namespace {

using Json = nlohmann::json;

// The first key that one object has twice, however it is spelled; empty if there is none. Keeps no
// values.
std::string RepeatedKey(std::string_view text) {
  std::string repeated;
  std::vector<std::set<std::string>> open;
  const Json::parser_callback_t note = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      open.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open.pop_back();
    } else if (event == Json::parse_event_t::key && repeated.empty()) {
      const std::string key = parsed.get<std::string>();
      if (!open.back().insert(key).second) repeated = key;
    }
    return true;
  };
  const Json parsed = Json::parse(text, note, /*allow_exceptions=*/false);
  return parsed.is_discarded() ? std::string() : repeated;
}

bool HasChildren(const Json& json) {
  return json.is_structured() && !json.empty();
}

// Leaves from below, so that nothing has children when it is destroyed. From the root each time:
// the way down is short (max_depth), and a stack would have to be allocated.
void Dismantle(Json& root) {
  while (HasChildren(root)) {
    Json* holder = &root;
    while (HasChildren(holder->back())) holder = &holder->back();
    holder->erase(std::prev(holder->end()));
  }
}

}  // namespace

JsonTree::~JsonTree() {
  Dismantle(root_);
}

absl::StatusOr<JsonTree> ParseStrictJson(const std::string& what, std::string_view text,
                                         size_t max_bytes, size_t max_depth) {
  const absl::Status sound =
      CheckJson(what, text, {.max_bytes = max_bytes, .max_depth = max_depth});
  if (!sound.ok()) {
    if (text.size() > max_bytes) return InvalidField(what, std::string(sound.message()));
    const std::string repeated = RepeatedKey(text);
    if (!repeated.empty()) return InvalidField(Quoted(repeated), "is there twice");
    return InvalidField(what, std::string(sound.message()));
  }
  return JsonTree(Json::parse(text, nullptr, /*allow_exceptions=*/false));
}

JsonFields::JsonFields(const Json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {}

const Json& JsonFields::Read(const std::string& field) {
  static const Json kAbsent;
  read_.insert(field);
  const auto found = object_.find(field);
  if (found != object_.end()) return *found;
  Fail(field, "is missing");
  return kAbsent;
}

int64_t JsonFields::Integer(const std::string& field, int64_t low, int64_t high) {
  const Json& value = Read(field);
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t(INT64_MAX)
                                               : value.is_number_integer();
  const int64_t number = fits ? value.get<int64_t>() : 0;
  if (fits && number >= low && number <= high) return number;
  Fail(field, absl::StrCat("must be an integer in [", low, ", ", high, "]"));
  return 0;
}

double JsonFields::Number(const std::string& field) {
  const Json& value = Read(field);
  if (value.is_number()) return value.get<double>();
  Fail(field, "must be a number");
  return 0.0;
}

bool JsonFields::Boolean(const std::string& field) {
  const Json& value = Read(field);
  if (value.is_boolean()) return value.get<bool>();
  Fail(field, "must be true or false");
  return false;
}

std::string JsonFields::Text(const std::string& field) {
  const Json& value = Read(field);
  if (value.is_string()) return value.get<std::string>();
  Fail(field, "must be a text");
  return {};
}

const Json& JsonFields::Object(const std::string& field) {
  static const Json kEmpty = Json::object();
  const Json& value = Read(field);
  if (value.is_object()) return value;
  Fail(field, "must be an object");
  return kEmpty;
}

const Json& JsonFields::Array(const std::string& field) {
  static const Json kEmpty = Json::array();
  const Json& value = Read(field);
  if (value.is_array()) return value;
  Fail(field, "must be a list");
  return kEmpty;
}

bool JsonFields::IsNull(const std::string& field) {
  return Read(field).is_null();
}

void JsonFields::Fail(const std::string& field, const std::string& sentence) {
  if (status_.ok()) status_ = InvalidField(prefix_ + field, sentence);
}

absl::Status JsonFields::Finish() const {
  if (!status_.ok()) return status_;
  for (const auto& [key, value] : object_.items()) {
    if (!read_.contains(key)) return InvalidField(prefix_ + Quoted(key), "is unknown");
  }
  return absl::OkStatus();
}

}  // namespace eta
