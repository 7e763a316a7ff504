#include "engine/format/schema/schema_check.h"

#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "engine/format/schema/schema_reader.h"
#include "engine/format/schema/schema_resolver.h"
#include "engine/format/schema/schema_rules.h"
#include "engine/format/schema/schema_writer.h"

namespace eta {

absl::StatusOr<std::string> EnforceableSchema(std::string_view schema) {
  return CatchOutOfMemory([&]() -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(schema::SchemaModel model, schema::ReadSchema(schema));
    RETURN_IF_ERROR(schema::CheckNodes(model));
    RETURN_IF_ERROR(schema::Resolve(model));
    return schema::WriteSchema(model);
  });
}

absl::Status CheckSchema(std::string_view schema) {
  return EnforceableSchema(schema).status();
}

}  // namespace eta
