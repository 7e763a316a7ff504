// The sequences that a run trains on: numbered sequences of T + 1 tokens, cut from texts in an
// order that the seed makes, with retrieval tasks among them. A sequence depends on its number
// alone, so the position in the data is one number, and a run that is resumed sees what it would
// have seen.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "training/data/retrieval_sequence.h"
#include "training/data/sequence_order.h"
#include "training/data/token_corpus.h"

namespace eta::training {

struct DataOptions {
  std::vector<std::string> texts;  // .txt or .jsonl, also .xz; at least one
  int32_t sequence_tokens = 0;     // T: predictions of one sequence
  double retrieval_share = 0.0;    // of the sequences, [0, 1]
  uint64_t seed = 1;
  TokenCacheOptions cache;  // its digest is filled in
};

struct TrainingSequences {
  int32_t count = 0;             // B
  std::vector<int32_t> tokens;   // [B, T + 1]
  std::vector<uint8_t> answers;  // [B, T]; 1: the token that is predicted there is of an answer
};

// Not thread-safe. The tokenizer must outlive it.
class TrainingData {
 public:
  // InvalidArgument for texts that fill no sequence; errors of TokenCorpus::Open and
  // RetrievalSequences::Create. `tokenizer_fingerprint` as of TokenizerDigest.
  static absl::StatusOr<std::unique_ptr<TrainingData>> Open(
      DataOptions options, const Tokenizer& tokenizer, const std::string& tokenizer_fingerprint);

  // Sequences number `first` to first + count - 1, counted over all ranks and steps. Whoever reads
  // other numbers sees other sequences, until the texts have been seen whole.
  absl::StatusOr<TrainingSequences> Read(uint64_t first, int32_t count);

  uint64_t text_sequences() const { return text_sequences_; }
  // Tokens of the texts.
  uint64_t text_tokens() const { return corpus_.tokens(); }
  uint64_t documents() const { return corpus_.documents(); }
  // SHA-256 of texts and tokenizer.
  const std::string& sha256() const { return corpus_.sha256(); }
  // How many passes over the texts end before sequence `number`.
  double PassesBefore(uint64_t number) const;

 private:
  TrainingData(const DataOptions& options, TokenCorpus corpus, uint64_t text_sequences)
      : options_(options),
        corpus_(std::move(corpus)),
        text_sequences_(text_sequences),
        order_(text_sequences, options.seed) {}

  uint64_t RetrievalBefore(uint64_t number) const;

  DataOptions options_;
  TokenCorpus corpus_;
  uint64_t text_sequences_;
  SequenceOrder order_;
  std::optional<RetrievalSequences> retrieval_;
};

}  // namespace eta::training
