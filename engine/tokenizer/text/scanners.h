// The patterns that most models cut their texts by, written out by hand: several times as quick as
// any engine for patterns, and they need no limits, since they take a time linear in the text.
#pragma once

#include <cstddef>
#include <string_view>

namespace eta {

// The end of the match that begins at `at`, which is not the end of the text: these patterns match
// everywhere, so that the next match begins there. `text` is well-formed UTF-8.
using Scanner = size_t (*)(std::string_view text, size_t at);

// GPT-2's pattern, which ByteLevel has built in.
extern const std::string_view kGpt2Pattern;
Scanner Gpt2Scanner();

// The scanner that does what a pattern does, which is known by how it is written; null: there is
// none. Patterns of GPT-2, Llama 3 (cl100k), Qwen 2, GPT-4o (o200k) and Mistral's Tekken.
Scanner FindScanner(std::string_view pattern);

}  // namespace eta
