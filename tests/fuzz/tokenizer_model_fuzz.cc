// Any bytes as a tokenizer model: refused, or a model that encodes and decodes, and goes only with
// a config.json that has room for it.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "engine/base/utf8.h"
#include "engine/checkpoint/piece_table.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/fuzz/checked_error.h"

namespace {

void CheckMisfits(const eta::TokenizerFiles& files, const eta::ModelConfig& fitting) {
  eta::ModelConfig smaller = fitting;
  --smaller.vocab_size;
  eta::fuzz::RequireReadable(eta::Tokenizer::Load(files, smaller).status());
  eta::ModelConfig larger = fitting;
  ++larger.vocab_size;
  const auto padded = eta::Tokenizer::Load(files, larger);
  if (!padded.ok() || !(*padded)->PieceBytes(fitting.vocab_size).empty()) std::abort();
  eta::ModelConfig outside = fitting;
  outside.eos_ids = {fitting.vocab_size};
  eta::fuzz::RequireReadable(eta::Tokenizer::Load(files, outside).status());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto table = eta::ParsePieceTable(bytes);
  if (!table.ok()) return 0;
  eta::ModelConfig config;
  config.vocab_size = static_cast<int32_t>(table->pieces.size());
  const eta::TokenizerFiles files = {.sentencepiece_model = std::string(bytes)};
  const auto tokenizer = eta::Tokenizer::Load(files, config);
  if (!tokenizer.ok()) std::abort();
  std::string text = "a  the\n\xC3\xA9\xE2\x96\x81 1";
  for (const eta::Piece& piece : table->pieces) text += piece.text.substr(0, 1) + piece.text;
  text.resize(std::min<size_t>(text.size(), 4096));
  while (eta::FirstInvalidUtf8(text)) text.pop_back();
  const auto ids = (*tokenizer)->Encode(text, true);
  if (!ids.ok()) std::abort();
  for (const int32_t id : *ids) {
    if (id < 0 || id >= config.vocab_size) std::abort();
  }
  if (eta::FirstInvalidUtf8((*tokenizer)->Decode(*ids))) std::abort();
  const int32_t outside[] = {-1, config.vocab_size};
  if (!(*tokenizer)->Decode(outside).empty()) std::abort();
  CheckMisfits(files, config);
  return 0;
}
