// Whether what the keywords of one node ask for together is enforced.
#pragma once

#include "absl/status/status.h"
#include "engine/format/schema/schema_model.h"

namespace eta::schema {

// What the lengths of a node's strings may be.
Lengths LengthsOf(const SchemaNode& node);

// Whether objects may have properties beside those that are named. An object whose schema names
// some and says no more has these alone, as with OpenAI's and vLLM's servers.
bool HasMoreProperties(const SchemaModel& model, const SchemaNode& node);
// Whether arrays may have items behind the prefix; the same holds where there is one.
bool HasMoreItems(const SchemaModel& model, const SchemaNode& node);

// INVALID_ARGUMENT as RefuseSchema has it.
absl::Status CheckNodes(const SchemaModel& model);

}  // namespace eta::schema
