// What compiles the formats of answers of one model.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/format/compiler/helper_compiler.h"
#include "engine/format/format_compiler.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {

// `helper` outlives it; null: the program has none. Where formats cannot be compiled it refuses
// them all: UNIMPLEMENTED (UNSUPPORTED_BY_SERVER), this build has no library for it, or no helper
// was started; FAILED_PRECONDITION (UNSUPPORTED_BY_MODEL), the model knows ids only or no end of
// text; UNAVAILABLE (FORMATS_UNAVAILABLE), the helper has died. Errors of MakeGrammarLibrary.
absl::StatusOr<std::unique_ptr<FormatCompiler>> MakeFormatCompiler(const FormatOptions& options,
                                                                   FormatHelper* helper,
                                                                   const Tokenizer& tokenizer);

}  // namespace eta
