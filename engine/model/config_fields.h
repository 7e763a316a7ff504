// Fields of config.json, read one after the other. The first error is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/base/json/json_check.h"
#include "nlohmann/json.hpp"

namespace eta {

// Of config.json and of generation_config.json.
inline constexpr JsonLimits kConfigLimits = {.max_bytes = size_t{1} << 20, .max_depth = 16};
inline constexpr size_t kMaxEosIds = 16;

// INVALID_ARGUMENT and UNIMPLEMENTED: "config.json: FIELD SENTENCE".
absl::Status InvalidConfig(const std::string& field, const std::string& sentence);
absl::Status UnsupportedConfig(const std::string& field, const std::string& sentence);

// A field that is null counts as absent. Errors name fields with `prefix` before them. The object
// must outlive its reader.
class ConfigFields {
 public:
  using Json = nlohmann::json;

  explicit ConfigFields(const Json& json, std::string prefix = "")
      : json_(json), prefix_(std::move(prefix)) {}

  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void Invalid(const std::string& field, const std::string& sentence) {
    Fail(InvalidConfig(prefix_ + field, sentence));
  }
  void Unsupported(const std::string& field, const std::string& sentence) {
    Fail(UnsupportedConfig(prefix_ + field, sentence));
  }

  const Json& json() const { return json_; }
  const Json* Find(const char* field) const;
  // Whether the file names the field, if only to say null.
  bool Names(const char* field) const { return json_.contains(field); }

  // A number out of [low, high], or none where no value stands for an absent one, is an error;
  // `low` is returned then.
  int32_t Int(const char* field, int32_t low, int32_t high, std::optional<int32_t> absent = {});
  int32_t ToInt(const char* field, const Json& value, int32_t low, int32_t high);
  double Double(const char* field, double low, double high, std::optional<double> absent = {});
  float Float(const char* field, double low, double high, std::optional<double> absent = {}) {
    return static_cast<float>(Double(field, low, high, absent));
  }
  bool Bool(const char* field, bool absent = false);
  std::string String(const char* field, const char* absent);

 private:
  const Json& json_;
  std::string prefix_;
  absl::Status status_;
};

}  // namespace eta
