// lint: untrusted-input, fuzz-covered
#include "engine/format/schema/answer_check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "engine/format/schema/schema_reader.h"
#include "engine/format/schema/schema_resolver.h"
#include "engine/format/schema/value_check.h"

namespace eta {
namespace {

absl::Status Invalid(const std::string& sentence, const std::string& unlogged) {
  return MakeError(absl::StatusCode::kInternal, absl::StrCat("the answer ", sentence),
                   {.reason = "ANSWER_INVALID", .unlogged = unlogged});
}

absl::Status Check(std::string_view schema, std::string_view answer) {
  ASSIGN_OR_RETURN(const schema::SchemaModel model, schema::ReadSchema(schema));
  RETURN_IF_ERROR(schema::RefuseCycles(model));
  const auto text = schema::JsonText::Parse(
      answer, {.max_bytes = UINT32_MAX, .max_depth = SIZE_MAX, .whole_characters = false});
  if (!text.ok()) return Invalid(std::string(text.status().message()), "");
  schema::ValueCheck check(model, *text);
  if (check.Accepts(0, 0)) return absl::OkStatus();
  return Invalid(absl::StrCat("breaks ", std::string(check.broken_keyword()), " of its schema"),
                 text->Pointer(check.broken_value()));
}

}  // namespace

absl::Status CheckAnswer(std::string_view schema, std::string_view answer) {
  return CatchOutOfMemory([&] { return Check(schema, answer); });
}

}  // namespace eta
