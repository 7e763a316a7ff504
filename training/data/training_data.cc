#include "training/data/training_data.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta::training {

absl::StatusOr<std::unique_ptr<TrainingData>> TrainingData::Open(
    DataOptions options, const Tokenizer& tokenizer, const std::string& tokenizer_fingerprint) {
  ASSIGN_OR_RETURN(options.cache.tokenizer_sha256,
                   TokenizerDigest(tokenizer_fingerprint, tokenizer));
  ASSIGN_OR_RETURN(TokenCorpus corpus, TokenCorpus::Open(options.texts, tokenizer, options.cache));
  const auto step = static_cast<uint64_t>(options.sequence_tokens);
  if (corpus.tokens() < step + 1) {
    return InvalidField("text", absl::StrCat("one sequence takes ", step + 1,
                                             " tokens, the texts hold ", corpus.tokens()));
  }
  const uint64_t sequences = (corpus.tokens() - 1) / step;
  if (sequences > std::numeric_limits<uint32_t>::max()) {
    return InvalidField("text", absl::StrCat("fills ", sequences, " sequences, over 2^32 - 1"));
  }
  std::unique_ptr<TrainingData> data(new TrainingData(options, std::move(corpus), sequences));
  if (options.retrieval_share > 0.0) {
    ASSIGN_OR_RETURN(RetrievalSequences retrieval,
                     RetrievalSequences::Create(data->corpus_, tokenizer, step + 1, options.seed));
    data->retrieval_.emplace(retrieval);
  }
  return data;
}

// Retrieval tasks lie evenly among the sequences: so it takes no count of those that were dealt.
uint64_t TrainingData::RetrievalBefore(uint64_t number) const {
  return static_cast<uint64_t>(std::floor(static_cast<double>(number) * options_.retrieval_share));
}

double TrainingData::PassesBefore(uint64_t number) const {
  return static_cast<double>(number - RetrievalBefore(number)) /
         static_cast<double>(text_sequences_);
}

absl::StatusOr<TrainingSequences> TrainingData::Read(uint64_t first, int32_t count) {
  const auto step = static_cast<size_t>(options_.sequence_tokens);
  const auto rows = static_cast<size_t>(count);
  TrainingSequences read = {.count = count,
                            .tokens = std::vector<int32_t>(rows * (step + 1)),
                            .answers = std::vector<uint8_t>(rows * step)};
  for (size_t row = 0; row < rows; ++row) {
    const uint64_t number = first + row;
    const std::span<int32_t> tokens = std::span(read.tokens).subspan(row * (step + 1), step + 1);
    const std::span<uint8_t> answers = std::span(read.answers).subspan(row * step, step);
    const uint64_t tasks = RetrievalBefore(number);
    if (RetrievalBefore(number + 1) > tasks) {
      RETURN_IF_ERROR(retrieval_->Make(tasks, tokens, answers));
    } else {
      RETURN_IF_ERROR(corpus_.Read(order_.At(number - tasks) * step, tokens));
    }
  }
  return read;
}

}  // namespace eta::training
