// lint: untrusted-input, fuzz-covered
#include <map>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/tokenizer/json/part_fields.h"
#include "engine/tokenizer/json/parts.h"

namespace eta {
namespace {

using NormalizerPtr = std::unique_ptr<const Normalizer>;

absl::StatusOr<NormalizerPtr> MakeReplacePart(const Part& part, PartFields& fields) {
  auto pattern = fields.Pattern(part.place);
  std::string content = fields.Text("content");
  if (!pattern.ok()) return pattern.status();
  if (const auto* text = std::get_if<std::string>(&*pattern)) {
    return MakeReplace(*text, std::move(content));
  }
  // Later versions put groups of the match there.
  if (content.find('$') != std::string::npos) {
    return absl::UnimplementedError(absl::StrCat(
        "tokenizer.json: ", part.place, ".content: \"$\" beside a Regex is not supported"));
  }
  return MakeReplace(std::get<Regex>(*std::move(pattern)), std::move(content));
}

absl::StatusOr<NormalizerPtr> MakeNormalizer(const Part& part) {
  static const auto* const kForms =
      new std::map<std::string, NormalForm>{{"NFC", NormalForm::kNfc},
                                            {"NFD", NormalForm::kNfd},
                                            {"NFKC", NormalForm::kNfkc},
                                            {"NFKD", NormalForm::kNfkd}};
  PartFields fields(*part.object, part.place);
  absl::StatusOr<NormalizerPtr> made = NormalizerPtr();
  if (const auto form = kForms->find(part.type); form != kForms->end()) {
    made = MakeNormalForm(form->second);
  } else if (part.type == "Lowercase") {
    made = MakeLowercase();
  } else if (part.type == "Strip") {
    const bool left = fields.Boolean("strip_left");
    made = MakeStrip(left, fields.Boolean("strip_right"));
  } else if (part.type == "Prepend") {
    made = MakePrepend(fields.Text("prepend"));
  } else if (part.type == "Replace") {
    made = MakeReplacePart(part, fields);
  } else {
    return UnknownPart(part);
  }
  if (!made.ok()) return made.status();
  RETURN_IF_ERROR(fields.Finish());
  return made;
}

}  // namespace

absl::StatusOr<std::vector<NormalizerPtr>> MakeNormalizers(const nlohmann::json& root) {
  ASSIGN_OR_RETURN(const auto parts, ListParts(root, "normalizer", "normalizers"));
  std::vector<NormalizerPtr> normalizers;
  for (const Part& part : parts) {
    ASSIGN_OR_RETURN(auto made, MakeNormalizer(part));
    normalizers.push_back(std::move(made));
  }
  return normalizers;
}

}  // namespace eta
