// Any prompt, ids and stop strings: what is streamed is what decoding at once gives, cut at the
// first stop. Input: number of stop strings (mod 5), each as length and bytes; flags; then one byte
// per id, the prompt's (as many as the flags say) first.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/utf8.h"
#include "engine/tokenizer/text_stream.h"
#include "tests/testing/engine/piece_file.h"

namespace {

std::unique_ptr<eta::Tokenizer> MakeTokenizer(bool dummy_prefix) {
  eta::PieceFile file;
  file.dummy_prefix = dummy_prefix;
  for (const char* text :
       {"\xE2\x96\x81", "\xE2\x96\x81the", "END", "EN", "ab", "abab", "\xC3\xA9"}) {
    file.entries.push_back({text, 0, 1});
  }
  eta::ModelConfig config;
  config.vocab_size = file.size();
  return *eta::Tokenizer::Load({.sentencepiece_model = file.Serialize()}, config);
}

// What `ids` add to `prompt`.
std::string Added(const eta::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                  std::span<const int32_t> ids, bool show_special) {
  eta::Utf8Assembler assembler;
  std::string text;
  bool first = true;
  const auto append = [&](int32_t id) {
    if (show_special && tokenizer.IsSpecial(id)) {
      assembler.Append(tokenizer.TokenText(id), text);
      return;
    }
    assembler.Append(first ? tokenizer.FirstPieceBytes(id) : tokenizer.PieceBytes(id), text);
    first = first && tokenizer.PieceBytes(id).empty();
  };
  for (const int32_t id : prompt) append(id);
  text.clear();
  for (const int32_t id : ids) append(id);
  assembler.Finish(text);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<eta::Tokenizer> tokenizers[] = {MakeTokenizer(false),
                                                               MakeTokenizer(true)};
  size_t i = 0;
  const auto next = [&]() -> uint8_t { return i < size ? data[i++] : 0; };
  std::vector<std::string> stops;
  for (int n = next() % 5; n > 0; --n) {
    std::string stop;
    for (int bytes = next() % 65; bytes > 0 && i < size; --bytes) stop += static_cast<char>(next());
    if (!eta::FirstInvalidUtf8(stop)) stops.push_back(stop);
  }
  const uint8_t flags = next();
  const bool include_stop = (flags & 1) != 0;
  const bool show_special = (flags & 32) != 0;
  const eta::Tokenizer& tokenizer = *tokenizers[(flags >> 1) & 1];
  std::vector<int32_t> ids;
  // A byte is the byte piece of that value; the lowest nine are words and control ids.
  while (i < size) {
    const uint8_t byte = next();
    ids.push_back(byte < 2 ? byte + 1 : byte < 9 ? tokenizer.vocab_size() + 1 - byte : 3 + byte);
  }

  const size_t prompt_size = std::min<size_t>((flags >> 2) % 8, ids.size());
  const std::vector<int32_t> prompt(ids.begin(), ids.begin() + static_cast<int64_t>(prompt_size));
  ids.erase(ids.begin(), ids.begin() + static_cast<int64_t>(prompt_size));

  std::string expected = Added(tokenizer, prompt, ids, show_special);
  if (prompt.empty() && expected != tokenizer.Decode(ids, show_special)) std::abort();
  size_t stop_end = std::string::npos;
  size_t stop_size = 0;
  for (const std::string& stop : stops) {
    const size_t begin = stop.empty() ? std::string::npos : expected.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < stop_end || (end == stop_end && stop.size() > stop_size)) {
      stop_end = end;
      stop_size = stop.size();
    }
  }
  if (stop_end != std::string::npos)
    expected.resize(include_stop ? stop_end : stop_end - stop_size);

  eta::TextStream stream(tokenizer, prompt, stops, include_stop, show_special);
  std::string text;
  for (const int32_t id : ids) {
    const auto emission = stream.Push(id);
    if (eta::FirstInvalidUtf8(emission.text)) std::abort();
    text += emission.text;
  }
  text += stream.Flush();
  if (text != expected) std::abort();
  if (stream.matched_stop().has_value() != (stop_end != std::string::npos)) std::abort();
  return 0;
}
