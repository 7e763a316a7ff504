#include "engine/format/compiler/make_format_compiler.h"

#include "engine/base/error.h"
#include "engine/format/compiler/refusing_compiler.h"
#include "engine/format/vocabulary.h"

namespace eta {
namespace {

std::unique_ptr<FormatCompiler> Refuse(absl::Status why) {
  return std::make_unique<RefusingCompiler>(std::move(why));
}

absl::Status Unsupported(const std::string& why) {
  return MakeError(absl::StatusCode::kUnimplemented, "format: " + why,
                   {.reason = "UNSUPPORTED_BY_SERVER", .field = "format"});
}

}  // namespace

absl::StatusOr<std::unique_ptr<FormatCompiler>> MakeFormatCompiler(const FormatOptions& options,
                                                                   FormatHelper* helper,
                                                                   const Tokenizer& tokenizer) {
  if (!HasGrammarLibrary()) {
    return Refuse(Unsupported("this server is built without formats of answers"));
  }
  if (helper == nullptr) {
    return Refuse(Unsupported("this program has no process to compile formats of answers in"));
  }
  if (!tokenizer.knows_text()) {
    return Refuse(UnsupportedByModel("format", "the model has no tokenizer, so no text"));
  }
  if (tokenizer.eos_ids().empty()) {
    return Refuse(UnsupportedByModel("format", "the model has no token that ends a text"));
  }
  auto made = HelperCompiler::Create(options, *helper, FormatVocabularyOf(tokenizer));
  if (absl::IsUnavailable(made.status())) return Refuse(made.status());
  return made;
}

}  // namespace eta
