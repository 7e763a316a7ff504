// Reading one part of a tokenizer.json: its fields by name, errors that say where it stands.
#pragma once

#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/json/json_fields.h"
#include "engine/tokenizer/text/regex.h"
#include "engine/tokenizer/text/splits.h"

namespace eta {

inline absl::Status InvalidPart(const std::string& place, const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: ", place, ": ", sentence));
}

// The fields of a part, its "type" aside.
class PartFields : public JsonFields {
 public:
  // `place` is empty for the file itself.
  PartFields(const nlohmann::json& object, const std::string& place)
      : JsonFields(object, absl::StrCat("tokenizer.json: ", place, place.empty() ? "" : ".")) {
    if (Has("type")) Text("type");
  }
  bool BooleanOr(const std::string& field, bool absent) {
    return Has(field) ? Boolean(field) : absent;
  }
  // {"String": text} or {"Regex": pattern}. Text is not empty.
  absl::StatusOr<std::variant<std::string, Regex>> Pattern(const std::string& place,
                                                           const std::string& field = "pattern");
};

// Metaspace, which pre-tokenizers and decoders have alike. Older files have add_prefix_space.
struct MetaspaceFields {
  std::string replacement;  // one character
  PrependScheme scheme = PrependScheme::kAlways;
  bool split = true;
};
absl::StatusOr<MetaspaceFields> ReadMetaspace(PartFields& fields);

}  // namespace eta
