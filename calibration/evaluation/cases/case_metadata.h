// Parameters of an evaluation case: text in the metadata of its file, each one required, read
// strictly. Errors are InvalidArgument and name the field and its limits.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/batch.h"
#include "kernels/params.h"

namespace eta {

using CaseMetadata = std::map<std::string, std::string>;

absl::StatusOr<int32_t> IntegerField(const CaseMetadata& metadata, const std::string& field,
                                     int32_t low, int32_t high);
absl::StatusOr<float> RealField(const CaseMetadata& metadata, const std::string& field, float low,
                                float high);
// The position of the field's text among `choices`.
absl::StatusOr<size_t> ChoiceField(const CaseMetadata& metadata, const std::string& field,
                                   std::initializer_list<const char*> choices);

// offset, z, pinned_blocks, rescue_chunk and floor.
absl::StatusOr<AttentionOptions> AttentionFields(const CaseMetadata& metadata);

// block_size and sub_block into `geometry`.
absl::Status BlockFields(const CaseMetadata& metadata, KvGeometry& geometry);

}  // namespace eta
