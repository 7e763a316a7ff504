#include "tests/testing/engine/sentencepiece_reference.h"

#include <sentencepiece_processor.h>

namespace eta {

SentencePieceReference::SentencePieceReference(const std::string& serialized)
    : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()),
      ok_(processor_->LoadFromSerializedProto(serialized).ok()) {}

SentencePieceReference::~SentencePieceReference() = default;

std::vector<int> SentencePieceReference::Encode(const std::string& text) const {
  std::vector<int> ids;
  return processor_->Encode(text, &ids).ok() ? ids : std::vector<int>();
}

std::string SentencePieceReference::Decode(const std::vector<int>& ids) const {
  std::string text;
  return processor_->Decode(ids, &text).ok() ? text : std::string();
}

}  // namespace eta
