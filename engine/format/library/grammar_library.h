// What makes of a format which tokens may follow, for the tokens of one model. The one place where
// the rest of the product meets the library that does it; a build without it has
// no_grammar_library.cc instead.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/format/answer_guide.h"
#include "engine/format/vocabulary.h"
#include "engine/request/answers/answer_format.h"

namespace eta {

// Immutable, so any number of threads may use it.
class GrammarLibrary {
 public:
  virtual ~GrammarLibrary() = default;

  // The format as bytes that Read understands. It can neither be stopped nor bounded: call it where
  // both can be done to the process. INVALID_ARGUMENT where it is no format or cannot be enforced;
  // RESOURCE_EXHAUSTED where memory ends.
  virtual absl::StatusOr<std::string> Compile(const AnswerFormat& format) const = 0;

  // `compiled` may be anything. INTERNAL where it is not what Compile makes of this format.
  virtual absl::StatusOr<std::shared_ptr<const CompiledFormat>> Read(
      const AnswerFormat& format, const std::string& compiled) const = 0;
};

// False: this build has no such library.
bool HasGrammarLibrary();

// UNIMPLEMENTED where this build has none; INTERNAL where it refuses the vocabulary.
using MakeLibrary =
    std::function<absl::StatusOr<std::unique_ptr<GrammarLibrary>>(const FormatVocabulary&)>;
absl::StatusOr<std::unique_ptr<GrammarLibrary>> MakeGrammarLibrary(
    const FormatVocabulary& vocabulary);

}  // namespace eta
