// The post-processor of a tokenizer.json: what it puts before and after every text.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace eta {

struct PostProcessor {
  std::vector<int32_t> beginning;
  std::vector<int32_t> ending;
};

// Of TemplateProcessing the template of a single text counts; ByteLevel changes offsets alone,
// which are not told. INVALID_ARGUMENT and UNIMPLEMENTED as MakeNormalizers; FAILED_PRECONDITION
// for an id that is not below `vocab_size`.
absl::StatusOr<PostProcessor> MakePostProcessor(const nlohmann::json& root, int32_t vocab_size);

}  // namespace eta
