// SentencePiece itself, which judges our own encoder. It uses standard types only: its header and
// Abseil's declare the same names, so no other file may include it.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace eta {

class SentencePieceReference {
 public:
  explicit SentencePieceReference(const std::string& serialized);
  ~SentencePieceReference();

  bool ok() const { return ok_; }
  std::vector<int> Encode(const std::string& text) const;
  std::string Decode(const std::vector<int>& ids) const;

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  bool ok_;
};

}  // namespace eta
