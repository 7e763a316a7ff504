// lint: untrusted-input, fuzz-covered
#include "engine/model/config_fields.h"

#include "absl/strings/str_cat.h"

namespace eta {

absl::Status InvalidConfig(const std::string& field, const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat("config.json: ", field, " ", sentence));
}

absl::Status UnsupportedConfig(const std::string& field, const std::string& sentence) {
  return absl::UnimplementedError(absl::StrCat("config.json: ", field, " ", sentence));
}

const ConfigFields::Json* ConfigFields::Find(const char* field) const {
  const auto it = json_.find(field);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

int32_t ConfigFields::Int(const char* field, int32_t low, int32_t high,
                          std::optional<int32_t> absent) {
  const Json* value = Find(field);
  if (value == nullptr) {
    if (!absent) Invalid(field, "is missing");
    return absent.value_or(low);
  }
  return ToInt(field, *value, low, high);
}

int32_t ConfigFields::ToInt(const char* field, const Json& value, int32_t low, int32_t high) {
  // number_unsigned may pass int64: compared before it is converted.
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= static_cast<uint64_t>(high)
                        : value.is_number_integer() && value.get<int64_t>() <= high;
  if (!fits || value.get<int64_t>() < low) {
    Invalid(field, absl::StrCat("must be a whole number from ", low, " to ", high));
    return low;
  }
  return value.get<int32_t>();
}

double ConfigFields::Double(const char* field, double low, double high,
                            std::optional<double> absent) {
  const Json* value = Find(field);
  if (value == nullptr) {
    if (!absent) Invalid(field, "is missing");
    return absent.value_or(low);
  }
  if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high)) {
    Invalid(field, absl::StrCat("must be a number from ", low, " to ", high));
    return low;
  }
  return value->get<double>();
}

bool ConfigFields::Bool(const char* field, bool absent) {
  const Json* value = Find(field);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) {
    Invalid(field, "must be true or false");
    return absent;
  }
  return value->get<bool>();
}

std::string ConfigFields::String(const char* field, const char* absent) {
  const Json* value = Find(field);
  if (value == nullptr) return absent;
  if (!value->is_string()) {
    Invalid(field, "must be a string");
    return absent;
  }
  return value->get<std::string>();
}

}  // namespace eta
