// What only all nodes of a schema together tell: which values they have at all.
#pragma once

#include "absl/status/status.h"
#include "engine/format/schema/schema_model.h"

namespace eta::schema {

// Fills in what SchemaNode leaves to be found. The nodes have passed CheckNodes. INVALID_ARGUMENT
// as RefuseSchema has it: a node that holds itself without an end, a schema that no value
// satisfies, branches of oneOf that may hold together, names that are no strings. Without
// recursion.
absl::Status Resolve(SchemaModel& model);

// So that nothing holds itself without an end, and values may be tried: a part of Resolve.
absl::Status RefuseCycles(const SchemaModel& model);

}  // namespace eta::schema
