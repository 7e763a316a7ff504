// Of a build without formats of answers (ETA_GRAMMAR=OFF).
#include "engine/format/library/grammar_library.h"

namespace eta {

bool HasGrammarLibrary() {
  return false;
}

absl::StatusOr<std::unique_ptr<GrammarLibrary>> MakeGrammarLibrary(const FormatVocabulary&) {
  return absl::UnimplementedError("built without formats of answers");
}

}  // namespace eta
