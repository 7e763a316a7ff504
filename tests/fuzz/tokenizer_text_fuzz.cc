// Any bytes as a prompt: refused exactly where they are not UTF-8; otherwise the ids are
// SentencePiece's and decode to the text. With special tokens, those that it spells and no others.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_replace.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/engine/sentencepiece_reference.h"

namespace {

struct Models {
  std::unique_ptr<eta::Tokenizer> tokenizer;
  std::unique_ptr<eta::SentencePieceReference> reference;
};

const Models& Load() {
  static const Models models = [] {
    std::ostringstream file;
    file << std::ifstream(ETA_SOURCE_DIR "/models/eta-27m/tokenizer.model", std::ios::binary)
                .rdbuf();
    eta::ModelConfig config;
    config.vocab_size = 8192;
    return Models{*eta::Tokenizer::Load({.sentencepiece_model = file.str()}, config),
                  std::make_unique<eta::SentencePieceReference>(file.str())};
  }();
  return models;
}

size_t Occurrences(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Models& models = Load();
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto ids = models.tokenizer->Encode(text, false);
  if (ids.ok() == eta::FirstInvalidUtf8(text).has_value()) std::abort();
  if (!ids.ok()) return 0;
  if (*ids != models.reference->Encode(text)) std::abort();
  const std::string expected = absl::StrReplaceAll(text, {{"\xE2\x96\x81", " "}});
  if (models.tokenizer->Decode(*ids) != expected) std::abort();

  const auto parsed = models.tokenizer->Encode(text, false, /*parse_special=*/true);
  if (!parsed.ok()) std::abort();
  const size_t specials = Occurrences(text, "<s>") + Occurrences(text, "</s>");
  const auto are = [](int32_t id) { return id == 1 || id == 2; };
  if (std::count_if(parsed->begin(), parsed->end(), are) != static_cast<ptrdiff_t>(specials)) {
    std::abort();
  }
  if (specials == 0 && *parsed != *ids) std::abort();
  return 0;
}
