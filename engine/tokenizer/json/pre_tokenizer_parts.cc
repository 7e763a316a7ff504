// lint: untrusted-input, fuzz-covered
#include <array>
#include <utility>

#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/json/part_fields.h"
#include "engine/tokenizer/json/parts.h"
#include "engine/tokenizer/text/splits.h"
#include "engine/tokenizer/text/unicode.h"

namespace eta {
namespace {

using Json = nlohmann::json;

MatchBehavior ReadBehavior(PartFields& fields) {
  struct Known {
    const char* name;
    MatchBehavior behavior;
  };
  constexpr std::array kKnown = {Known{"Removed", MatchBehavior::kRemoved},
                                 Known{"Isolated", MatchBehavior::kIsolated},
                                 Known{"MergedWithPrevious", MatchBehavior::kMergedWithPrevious},
                                 Known{"MergedWithNext", MatchBehavior::kMergedWithNext},
                                 Known{"Contiguous", MatchBehavior::kContiguous}};
  const std::string name = fields.Text("behavior");
  for (const Known& known : kKnown) {
    if (name == known.name) return known.behavior;
  }
  fields.Fail("behavior",
              "must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
  return MatchBehavior::kIsolated;
}

absl::StatusOr<PreTokenizerPtr> MakeSplitPart(const Part& part, PartFields& fields) {
  auto pattern = fields.Pattern(part.place);
  const MatchBehavior behavior = ReadBehavior(fields);
  const bool invert = fields.Boolean("invert");
  if (!pattern.ok()) return pattern.status();
  if (!fields.status().ok()) return fields.status();
  if (const auto* text = std::get_if<std::string>(&*pattern)) {
    return MakeSplit(*text, behavior, invert);
  }
  // Known patterns match everywhere, so nothing is left between matches.
  const bool matches_are_pieces =
      behavior == MatchBehavior::kIsolated || (behavior == MatchBehavior::kRemoved && invert);
  const Scanner scanner =
      FindScanner((*part.object)["pattern"]["Regex"].get_ref<const std::string&>());
  if (matches_are_pieces && scanner != nullptr) return MakeScannerSplit(scanner);
  return MakeSplit(std::get<Regex>(*std::move(pattern)), behavior, invert);
}

absl::StatusOr<PrependScheme> ReadScheme(PartFields& fields, bool add_prefix_space) {
  if (!fields.Has("prepend_scheme")) {
    return add_prefix_space ? PrependScheme::kAlways : PrependScheme::kNever;
  }
  const std::string name = fields.Text("prepend_scheme");
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  fields.Fail("prepend_scheme", "must be always, first or never");
  return fields.status();
}

absl::StatusOr<PreTokenizerPtr> MakeMetaspacePart(PartFields& fields) {
  ASSIGN_OR_RETURN(auto metaspace, ReadMetaspace(fields));
  return MakeMetaspace(std::move(metaspace.replacement), metaspace.scheme, metaspace.split);
}

absl::StatusOr<PreTokenizerPtr> MakePreTokenizer(const Part& part) {
  PartFields fields(*part.object, part.place);
  absl::StatusOr<PreTokenizerPtr> made = PreTokenizerPtr();
  if (part.type == "Split") {
    made = MakeSplitPart(part, fields);
  } else if (part.type == "Digits") {
    made = MakeDigits(fields.Boolean("individual_digits"));
  } else if (part.type == "Punctuation") {
    made =
        MakePunctuation(fields.Has("behavior") ? ReadBehavior(fields) : MatchBehavior::kIsolated);
  } else if (part.type == "Whitespace") {
    made = MakeWhitespace();
  } else if (part.type == "WhitespaceSplit") {
    made = MakeWhitespaceSplit();
  } else if (part.type == "ByteLevel") {
    const bool add_prefix_space = fields.Boolean("add_prefix_space");
    fields.BooleanOr("trim_offsets", true);  // of offsets, which are not told
    made = MakeByteLevel(add_prefix_space, fields.BooleanOr("use_regex", true));
  } else if (part.type == "Metaspace") {
    made = MakeMetaspacePart(fields);
  } else {
    return UnknownPart(part);
  }
  if (!made.ok()) return made.status();
  RETURN_IF_ERROR(fields.Finish());
  return made;
}

}  // namespace

absl::StatusOr<MetaspaceFields> ReadMetaspace(PartFields& fields) {
  MetaspaceFields metaspace;
  metaspace.replacement = fields.Text("replacement");
  const bool add_prefix_space = fields.BooleanOr("add_prefix_space", true);
  ASSIGN_OR_RETURN(metaspace.scheme, ReadScheme(fields, add_prefix_space));
  metaspace.split = fields.BooleanOr("split", true);
  if (fields.Has("str_rep")) fields.Text("str_rep");  // the replacement again, in older files
  if (fields.status().ok() && !IsCharacter(metaspace.replacement)) {
    fields.Fail("replacement", "must be one character");
  }
  if (!fields.status().ok()) return fields.status();
  return metaspace;
}

absl::StatusOr<MadePreTokenizers> MakePreTokenizers(const Json& root) {
  ASSIGN_OR_RETURN(const auto parts, ListParts(root, "pre_tokenizer", "pretokenizers"));
  MadePreTokenizers made;
  for (const Part& part : parts) {
    // ByteLevel turns bytes into characters: what came after it would have those to cut.
    if (made.byte_level) {
      return absl::UnimplementedError(absl::StrCat("tokenizer.json: ", part.place, ": type ",
                                                   Quoted(part.type),
                                                   " behind ByteLevel is not supported"));
    }
    ASSIGN_OR_RETURN(auto stage, MakePreTokenizer(part));
    made.stages.push_back(std::move(stage));
    made.byte_level = part.type == "ByteLevel";
  }
  return made;
}

}  // namespace eta
