// Parameters of an evaluation case: texts in the metadata of its file. They are read strictly, and
// required but where it says otherwise. Errors are InvalidArgument and name the field and its
// limits.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "engine/request/request.h"
#include "kernels/kv_geometry.h"

namespace eta {

using CaseMetadata = std::map<std::string, std::string>;

absl::StatusOr<int32_t> IntegerField(const CaseMetadata& metadata, const std::string& field,
                                     int32_t low, int32_t high);
absl::StatusOr<float> RealField(const CaseMetadata& metadata, const std::string& field, float low,
                                float high);
// Returns the index of the field's text in `choices`.
absl::StatusOr<size_t> ChoiceField(const CaseMetadata& metadata, const std::string& field,
                                   std::initializer_list<const char*> choices);

// As ChoiceField; `absent` where there is no such field.
absl::StatusOr<size_t> OptionalChoice(const CaseMetadata& metadata, const std::string& field,
                                      std::initializer_list<const char*> choices, size_t absent);

// Reads the settings of attention by their names, rescue_chunk, thresholds (given or relative;
// given where there is none) and with relative ones relative_c. offset, z, pinned_blocks and floor
// must be there; other settings are the paper's where they are absent.
absl::StatusOr<ResolvedAttention> AttentionFields(const CaseMetadata& metadata);

// Reads block_size and sub_block into `geometry`.
absl::Status BlockFields(const CaseMetadata& metadata, KvGeometry& geometry);

}  // namespace eta
