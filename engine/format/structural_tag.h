// The JSON of a structural tag as it is compiled: every schema in it as EnforceableSchema says it
// (schema/schema_check.h), its white space bounded, and the special tokens that it names told apart
// from the text that spells them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/format/vocabulary.h"

namespace eta {

struct StructuralTag {
  std::string json;  // special tokens by their ids
  // Special tokens that the tag names as tokens, ascending: they may be part of the answer.
  std::vector<int32_t> tokens;
  // It has parts that are bound token by token, so that the text alone does not say whether an
  // answer is right.
  bool by_tokens = false;
};

// `text` is {"type": "structural_tag", "format": {...}}, or the older form of vLLM with
// "structures" and "triggers". INVALID_ARGUMENT (INVALID_FIELD), field format.structural_tag: it is
// no such JSON, is too deep, or has a schema that cannot be enforced; it is over
// kMostToolFormatBytes (request/answers/format_validation.h), which has the limit of others too.
absl::StatusOr<StructuralTag> ReadStructuralTag(std::string_view text,
                                                const FormatVocabulary& vocabulary);

}  // namespace eta
