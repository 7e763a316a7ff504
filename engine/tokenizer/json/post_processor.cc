// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/json/post_processor.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/tokenizer/json/part_fields.h"
#include "engine/tokenizer/json/parts.h"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxPieces = 64;
constexpr int64_t kMaxTypeId = 1 << 20;

// Ids of a special token that the template names.
absl::StatusOr<std::vector<int32_t>> ReadIds(const Json& special_tokens, const std::string& name,
                                             const std::string& place, int32_t vocab_size) {
  const auto found = special_tokens.find(name);
  if (found == special_tokens.end() || !found->is_object()) {
    return InvalidPart(place, "special_tokens lacks a token that the template names");
  }
  PartFields fields(*found, place + ".special_tokens[]");
  fields.Text("id");
  fields.Array("tokens");
  const Json& list = fields.Array("ids");
  RETURN_IF_ERROR(fields.Finish());
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    const bool is_id = id.is_number_integer() && id.get<int64_t>() >= 0;
    if (!is_id || ids.size() == kMaxPieces) {
      return InvalidPart(place, "ids of special_tokens must be a few whole numbers");
    }
    if (id.get<int64_t>() >= vocab_size) {
      return absl::FailedPreconditionError(
          absl::StrCat("tokenizer.json: ", place, ": id ", id.get<int64_t>(),
                       " is outside of config.json's vocab_size ", vocab_size));
    }
    ids.push_back(static_cast<int32_t>(id.get<int64_t>()));
  }
  return ids;
}

absl::StatusOr<PostProcessor> ReadTemplate(const Part& part, int32_t vocab_size) {
  PartFields fields(*part.object, part.place);
  const Json& single = fields.Array("single");
  fields.Array("pair");  // of two texts
  const Json& special_tokens = fields.Object("special_tokens");
  RETURN_IF_ERROR(fields.Finish());
  if (single.size() > kMaxPieces) return InvalidPart(part.place, "single is too long");
  PostProcessor made;
  bool seen_text = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const std::string place = absl::StrCat(part.place, ".single[", i, "]");
    if (!single[i].is_object() || single[i].size() != 1 || !single[i].begin()->is_object()) {
      return InvalidPart(place, "must be an object with SpecialToken or Sequence");
    }
    PartFields piece(*single[i].begin(), place);
    const std::string name = piece.Text("id");
    piece.Integer("type_id", 0, kMaxTypeId);
    RETURN_IF_ERROR(piece.Finish());
    if (single[i].contains("Sequence")) {
      if (std::exchange(seen_text, true) || name != "A") {
        return InvalidPart(place, "the template of one text must have it once, as A");
      }
    } else if (single[i].contains("SpecialToken")) {
      ASSIGN_OR_RETURN(auto ids, ReadIds(special_tokens, name, part.place, vocab_size));
      std::vector<int32_t>& side = seen_text ? made.ending : made.beginning;
      side.insert(side.end(), ids.begin(), ids.end());
    } else {
      return InvalidPart(place, "must be an object with SpecialToken or Sequence");
    }
  }
  if (!seen_text)
    return InvalidPart(part.place, "the template of one text must have it once, as A");
  return made;
}

}  // namespace

absl::StatusOr<PostProcessor> MakePostProcessor(const Json& root, int32_t vocab_size) {
  ASSIGN_OR_RETURN(const auto parts, ListParts(root, "post_processor", "processors"));
  PostProcessor all;
  for (const Part& part : parts) {
    if (part.type == "ByteLevel") continue;
    if (part.type != "TemplateProcessing") return UnknownPart(part);
    ASSIGN_OR_RETURN(auto made, ReadTemplate(part, vocab_size));
    all.beginning.insert(all.beginning.begin(), made.beginning.begin(), made.beginning.end());
    all.ending.insert(all.ending.end(), made.ending.begin(), made.ending.end());
  }
  return all;
}

}  // namespace eta
