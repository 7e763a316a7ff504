// A retrieval task as a sequence of tokens: text with the task's sentences in it, then its
// questions with their answers.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/needles/retrieval_task.h"
#include "training/data/token_corpus.h"

namespace eta {
class Tokenizer;
}  // namespace eta

namespace eta::training {

// Immutable; thread-safe. Corpus and tokenizer must outlive it.
class RetrievalSequences {
 public:
  // Sequences of `length` tokens. InvalidArgument (`retrieval`) for tasks that do not fit in them.
  static absl::StatusOr<RetrievalSequences> Create(const TokenCorpus& corpus,
                                                   const Tokenizer& tokenizer, size_t length,
                                                   uint64_t seed);

  // Sequence `number`. tokens: [length]. answers: [length - 1], 1 where the token after this one is
  // of an answer, else 0. Errors of TokenCorpus::Read.
  absl::Status Make(uint64_t number, std::span<int32_t> tokens, std::span<uint8_t> answers) const;

 private:
  RetrievalSequences(const TokenCorpus& corpus, const Tokenizer& tokenizer, size_t length,
                     uint64_t seed)
      : corpus_(corpus), tokenizer_(tokenizer), length_(length), seed_(seed) {}

  // With what begins and ends a sequence.
  size_t SizeOf(const TaskTokens& task) const;

  const TokenCorpus& corpus_;
  const Tokenizer& tokenizer_;
  size_t length_;
  uint64_t seed_;
  int most_keys_ = 2;
};

}  // namespace eta::training
