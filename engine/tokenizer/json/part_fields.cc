// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/json/part_fields.h"

#include <utility>

namespace eta {

absl::StatusOr<std::variant<std::string, Regex>> PartFields::Pattern(const std::string& place,
                                                                     const std::string& field) {
  const nlohmann::json& object = Object(field);
  if (!status().ok()) return status();
  const std::string where = absl::StrCat(place, ".", field);
  const std::string wrong = "must have one text, in \"String\" or \"Regex\", that is not empty";
  if (object.size() != 1 || !object.begin()->is_string()) return InvalidPart(where, wrong);
  std::string text = object.begin()->get<std::string>();
  if (text.empty()) return InvalidPart(where, wrong);
  if (object.contains("String")) return text;
  if (!object.contains("Regex")) return InvalidPart(where, wrong);
  auto regex = Regex::Compile(text);
  if (!regex.ok()) {
    return absl::Status(regex.status().code(),
                        absl::StrCat("tokenizer.json: ", where, ": ", regex.status().message()));
  }
  return *std::move(regex);
}

}  // namespace eta
