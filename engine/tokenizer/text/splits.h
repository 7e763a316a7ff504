// The stages of pre-tokenizers, by the names that Hugging Face's tokenizers gives them.
#pragma once

#include <memory>
#include <string>

#include "engine/tokenizer/text/pre_tokenizer.h"
#include "engine/tokenizer/text/scanners.h"

namespace eta {

using PreTokenizerPtr = std::unique_ptr<const PreTokenizer>;

// Split: by a pattern, or by a text that is not empty. `invert`: what does not match counts as what
// does.
PreTokenizerPtr MakeSplit(Regex pattern, MatchBehavior behavior, bool invert);
PreTokenizerPtr MakeSplit(std::string text, MatchBehavior behavior, bool invert);
// Each match is a piece.
PreTokenizerPtr MakeScannerSplit(Scanner scanner);
// Each character of category N on its own, or runs of them together.
PreTokenizerPtr MakeDigits(bool individual);
// ASCII's punctuation and category P.
PreTokenizerPtr MakePunctuation(MatchBehavior behavior);
// Between white space: runs of word characters, and runs of others.
PreTokenizerPtr MakeWhitespace();
PreTokenizerPtr MakeWhitespaceSplit();
// The part of ByteLevel that cuts; that bytes become characters is the model's affair.
PreTokenizerPtr MakeByteLevel(bool add_prefix_space, bool use_regex);

enum class PrependScheme { kAlways, kFirst, kNever };
// Spaces become `replacement`, and so does the beginning of a piece. `split`: a piece begins with
// each.
PreTokenizerPtr MakeMetaspace(std::string replacement, PrependScheme scheme, bool split);

}  // namespace eta
