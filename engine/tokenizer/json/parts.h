// The parts of a tokenizer.json beside its model, each an object with its name in "type".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/text/normalizer.h"
#include "engine/tokenizer/text/pre_tokenizer.h"
#include "nlohmann/json.hpp"

namespace eta {

inline constexpr size_t kMaxParts = 32;

// A part and, of a Sequence, the parts in it instead, in their order; `list` is what that Sequence
// calls them. Null has none. INVALID_ARGUMENT for what is no object with a "type", and for over
// kMaxParts.
struct Part {
  const nlohmann::json* object;  // lives as long as the tree
  std::string type;
  std::string place;  // "normalizer.normalizers[0]"
};
absl::StatusOr<std::vector<Part>> ListParts(const nlohmann::json& root, const std::string& place,
                                            const std::string& list);

// A part that is not known: UNIMPLEMENTED.
absl::Status UnknownPart(const Part& part);

// INVALID_ARGUMENT for fields that are missing, unknown, of another type or out of bounds, and for
// patterns that are none; UNIMPLEMENTED, naming it, for parts and patterns that are not known.
absl::StatusOr<std::vector<std::unique_ptr<const Normalizer>>> MakeNormalizers(
    const nlohmann::json& root);

struct MadePreTokenizers {
  PreTokenizers stages;
  bool byte_level = false;  // the vocabulary spells bytes
};
absl::StatusOr<MadePreTokenizers> MakePreTokenizers(const nlohmann::json& root);

}  // namespace eta
