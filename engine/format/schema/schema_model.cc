#include "engine/format/schema/schema_model.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta::schema {

absl::Status RefuseSchema(const JsonText& text, uint32_t at, const std::string& sentence) {
  return MakeError(
      absl::StatusCode::kInvalidArgument, absl::StrCat(kSchemaField, ": ", sentence),
      {.reason = "INVALID_FIELD", .field = kSchemaField, .unlogged = text.Pointer(at)});
}

}  // namespace eta::schema
