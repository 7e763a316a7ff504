// Reads a JSON schema by its keywords: a white list.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/format/schema/schema_model.h"

namespace eta::schema {

inline constexpr size_t kMaxSchemaBytes = 64 << 10;
inline constexpr size_t kMaxSchemaDepth = 64;    // of brackets
inline constexpr size_t kMaxValues = 256;        // of an enum
inline constexpr size_t kMaxBranches = 64;       // of anyOf and oneOf
inline constexpr uint64_t kMaxLeast = 100'000;   // of minItems and minProperties, and all lengths
inline constexpr uint64_t kMaxMost = INT32_MAX;  // of maxItems and maxProperties

// All nodes, what they point at, and no more: CheckNodes and Resolve come after it.
// INVALID_ARGUMENT as RefuseSchema has it. Without recursion.
absl::StatusOr<SchemaModel> ReadSchema(std::string_view schema);

}  // namespace eta::schema
