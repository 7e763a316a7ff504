// The normalizer of a tokenizer.json: how a text is changed before it is cut.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "engine/tokenizer/text/marked_text.h"
#include "engine/tokenizer/text/regex.h"

namespace eta {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Immutable; thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;

  // Errors of RegexRun.
  virtual absl::Status Apply(MarkedText& text, RegexRun& run) const = 0;

  // Bytes that one byte of the result stands for at most; 0: any number.
  virtual size_t max_shrink() const = 0;
};

std::unique_ptr<const Normalizer> MakeNormalForm(NormalForm form);
std::unique_ptr<const Normalizer> MakeLowercase();
// White space at either end of a text goes.
std::unique_ptr<const Normalizer> MakeStrip(bool left, bool right);
// Before a text that is not empty.
std::unique_ptr<const Normalizer> MakePrepend(std::string prefix);
// Every match becomes `content`.
std::unique_ptr<const Normalizer> MakeReplace(std::string from, std::string content);
std::unique_ptr<const Normalizer> MakeReplace(Regex from, std::string content);

}  // namespace eta
