// What the bounds of a schema's node come to, for the library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/format/schema/schema_model.h"

namespace eta::schema {

struct IntegerRange {
  std::optional<int64_t> low;
  std::optional<int64_t> high;
};

struct NumberEnd {
  double value = 0;
  bool exclusive = false;
  std::string text;  // at most 6 digits behind the point
};

struct NumberRange {
  std::optional<NumberEnd> low;
  std::optional<NumberEnd> high;
};

// INVALID_ARGUMENT as RefuseSchema has it: a bound that is not enforced, or none lies in between.
absl::StatusOr<IntegerRange> IntegerRangeOf(const SchemaModel& model, const SchemaNode& node);
absl::StatusOr<NumberRange> NumberRangeOf(const SchemaModel& model, const SchemaNode& node);

}  // namespace eta::schema
