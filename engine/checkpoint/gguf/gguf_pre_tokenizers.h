// How byte-level tokenizers cut a text before they merge, by the name that a GGUF file gives
// (tokenizer.ggml.pre). The file has the name only, not the patterns.
#pragma once

#include <array>
#include <string_view>

namespace eta {

struct PreTokenizer {
  // Each cuts the pieces that those before it left: what matches becomes a piece of its own. Behind
  // the last one they are empty.
  std::array<std::string_view, 6> patterns{};
  bool ignore_merges = false;        // a piece that is a token is taken without merging
  bool adds_bos = false;             // before a text, where the file does not say
  bool composes_characters = false;  // Unicode NFC first
};

// Null for a name that is not known. Any thread.
const PreTokenizer* FindPreTokenizer(std::string_view name);

// A name of what cuts and merges like this, whatever it puts before a text; empty: none is known.
std::string_view FindPreTokenizerName(const PreTokenizer& cuts);

// What `use_regex` of a pre-tokenizer ByteLevel and `individual_digits` of Digits stand for.
extern const std::string_view kByteLevelPattern;
extern const std::string_view kEachDigitPattern;

}  // namespace eta
