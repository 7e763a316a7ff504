// lint: untrusted-input, fuzz-covered
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/json/part_fields.h"
#include "engine/tokenizer/json/parts.h"

namespace eta {
namespace {

using Json = nlohmann::json;

}  // namespace

absl::StatusOr<std::vector<Part>> ListParts(const Json& root, const std::string& place,
                                            const std::string& list) {
  std::vector<Part> parts;
  if (root.is_null()) return parts;
  // What is still to be listed, the next one last.
  std::vector<std::pair<const Json*, std::string>> rest = {{&root, place}};
  while (!rest.empty()) {
    const auto [object, where] = std::move(rest.back());
    rest.pop_back();
    const auto type = object->is_object() ? object->find("type") : object->end();
    if (!object->is_object() || type == object->end() || !type->is_string()) {
      return InvalidPart(where, "must be an object with a text in \"type\"");
    }
    if (*type != "Sequence") {
      parts.push_back({.object = object, .type = type->get<std::string>(), .place = where});
    } else {
      PartFields fields(*object, where);
      const Json& inner = fields.Array(list);
      RETURN_IF_ERROR(fields.Finish());
      for (size_t i = inner.size(); i-- > 0;) {
        rest.emplace_back(&inner[i], absl::StrCat(where, ".", list, "[", i, "]"));
      }
    }
    if (parts.size() + rest.size() > kMaxParts) {
      return InvalidPart(place, absl::StrCat("has over ", kMaxParts, " parts"));
    }
  }
  return parts;
}

absl::Status UnknownPart(const Part& part) {
  return absl::UnimplementedError(absl::StrCat("tokenizer.json: ", part.place, ": type ",
                                               Quoted(part.type), " is not supported"));
}

}  // namespace eta
