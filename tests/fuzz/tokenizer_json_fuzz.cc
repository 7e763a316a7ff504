// Any bytes as a tokenizer.json, and any text behind a NUL, which is a chat template where it
// begins with "{%" or "{{", and a tokenizer_config.json where it begins with "{": refused in a
// readable sentence, or ids of the vocabulary that read as well-formed text, the same whether told
// one by one or at once, and no control token where the caller allows none.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/utf8.h"
#include "engine/tokenizer/text_stream.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/fuzz/checked_error.h"

namespace {

using eta::fuzz::Require;

constexpr int32_t kVocabulary = 400;
constexpr size_t kMaxText = 4096;

void CheckReading(const eta::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  eta::TextStream stream(tokenizer, {}, {}, /*include_stop=*/false);
  std::string told;
  for (const int32_t id : ids) told += stream.Push(id).text;
  told += stream.Flush();
  Require(told == tokenizer.Decode(ids));
  Require(!eta::FirstInvalidUtf8(told));
}

void CheckText(const eta::Tokenizer& tokenizer, const std::string& text) {
  const size_t middle = text.size() / 2;
  const std::vector<std::vector<eta::ByteRange>> controls = {
      {}, {{0, text.size()}}, {{0, middle}, {middle, text.size()}}, {{middle, text.size()}}};
  std::vector<std::vector<int32_t>> all;
  for (const std::vector<eta::ByteRange>& control : controls) {
    const auto ids = tokenizer.Encode(text, /*add_bos=*/true, control);
    if (!ids.ok()) {
      eta::fuzz::RequireReadable(ids.status());
      return;
    }
    for (const int32_t id : *ids) Require(id >= 0 && id < kVocabulary);
    const size_t most = tokenizer.max_token_bytes();
    Require(most == 0 || ids->size() >= (text.size() + most - 1) / most);
    CheckReading(tokenizer, *ids);
    all.push_back(*ids);
  }
  Require(all[1] == all[2]);  // touching ranges are one
  Require(all[0] == *tokenizer.Encode(text, true, /*parse_special=*/false));
}

void CheckRefusals(const eta::Tokenizer& tokenizer) {
  const std::vector<std::vector<eta::ByteRange>> controls = {{{1, 0}}, {{0, 3}}, {{1, 2}, {0, 1}}};
  for (const std::vector<eta::ByteRange>& control : controls) {
    eta::fuzz::RequireReadable(tokenizer.Encode("ab", false, control).status());
  }
  for (const int32_t id : {-1, kVocabulary}) {
    Require(tokenizer.TokenText(id).empty() && tokenizer.PieceBytes(id).empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  std::string text(input.substr(std::min(end + 1, input.size())).substr(0, kMaxText));
  eta::TokenizerFiles files = {.tokenizer_json = std::string(input.substr(0, end)),
                               .chat_template = "{{ '<think>' }}"};
  eta::ModelConfig config;
  config.vocab_size = kVocabulary;
  if (text.starts_with("{%") || text.starts_with("{{")) {
    files.chat_template = text;
  } else if (text.starts_with("{")) {
    files.tokenizer_config_json = text;
  }
  const auto tokenizer = eta::Tokenizer::Load(files, config);
  if (!tokenizer.ok()) {
    eta::fuzz::RequireReadable(tokenizer.status());
    return 0;
  }
  while (eta::FirstInvalidUtf8(text)) text.pop_back();
  CheckText(**tokenizer, text);
  CheckRefusals(**tokenizer);
  CheckText(**tokenizer,
            "Ab 12\n  \xC3\xA9"
            "e\xCC\x81 <s><think> a's");
  std::vector<int32_t> every(kVocabulary);
  for (int32_t id = 0; id < kVocabulary; ++id) every[static_cast<size_t>(id)] = id;
  CheckReading(**tokenizer, every);
  return 0;
}
