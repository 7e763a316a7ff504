#include "training/data/retrieval_sequence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta::training {
namespace {

constexpr int kMostKeys = 16;
// Tasks take at most this share of a sequence; the rest is text.
constexpr size_t kTextToTask = 2;

// Fills a sequence from its front.
class SequenceWriter {
 public:
  SequenceWriter(std::span<int32_t> tokens, std::span<uint8_t> answers)
      : tokens_(tokens), answers_(answers) {
    std::ranges::fill(answers_, uint8_t{0});
  }

  void Add(std::span<const int32_t> tokens) {
    std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(at_));
    at_ += tokens.size();
  }
  void Add(const QuestionTokens& question) {
    const std::span<const int32_t> tokens(question.tokens);
    Add(tokens.first(question.answer));
    const std::span<const int32_t> answer = tokens.subspan(question.answer);
    std::ranges::fill(answers_.subspan(at_ - 1, answer.size()), uint8_t{1});
    Add(answer);
  }

 private:
  std::span<int32_t> tokens_;
  std::span<uint8_t> answers_;
  size_t at_ = 0;
};

}  // namespace

size_t RetrievalSequences::SizeOf(const TaskTokens& task) const {
  return tokenizer_.beginning().size() + task.count + (tokenizer_.eos_ids().empty() ? 0 : 1);
}

absl::StatusOr<RetrievalSequences> RetrievalSequences::Create(const TokenCorpus& corpus,
                                                              const Tokenizer& tokenizer,
                                                              size_t length, uint64_t seed) {
  RetrievalSequences made(corpus, tokenizer, length, seed);
  // As many keys as the sequence has room for; the kinds are tried with every number of them.
  for (int keys = 2; keys <= kMostKeys; ++keys) {
    for (int kind = 0; kind < kRetrievalKinds; ++kind) {
      Draws draws(seed, DrawPurpose::kRetrieval, ~uint64_t{0});
      RetrievalTask task = MakeRetrievalTask(static_cast<RetrievalKind>(kind), 2, draws);
      task.sentences.resize(std::max<size_t>(task.sentences.size(), static_cast<size_t>(keys)),
                            task.sentences.front());
      task.questions.resize(4, task.questions.front());
      ASSIGN_OR_RETURN(const TaskTokens parts, TokenizeTask(task, tokenizer));
      if (made.SizeOf(parts) <= length / kTextToTask) continue;
      if (keys > 2) return made;
      return InvalidField("retrieval",
                          absl::StrCat("its tasks take up to ", made.SizeOf(parts),
                                       " tokens; sequences must have twice as many, not ", length));
    }
    made.most_keys_ = keys;
  }
  return made;
}

absl::Status RetrievalSequences::Make(uint64_t number, std::span<int32_t> tokens,
                                      std::span<uint8_t> answers) const {
  Draws draws(seed_, DrawPurpose::kRetrieval, number);
  const auto kind = static_cast<RetrievalKind>(number % kRetrievalKinds);
  ASSIGN_OR_RETURN(const TaskTokens task,
                   TokenizeTask(MakeRetrievalTask(kind, most_keys_, draws), tokenizer_));
  // Numbers differ in their tokens: a task may be longer than those that were tried.
  if (SizeOf(task) >= length_) return absl::InternalError("retrieval: a task is too long");
  std::vector<int32_t> text(length_ - SizeOf(task));
  RETURN_IF_ERROR(corpus_.Read(draws.Below(corpus_.tokens() - text.size() + 1), text));

  SequenceWriter writer(tokens, answers);
  writer.Add(tokenizer_.beginning());
  writer.Add(HideNeedles(text, PlaceNeedles(task.needles, text, tokenizer_, draws)));
  for (const QuestionTokens& question : task.questions) writer.Add(question);
  if (!tokenizer_.eos_ids().empty()) writer.Add(std::span(tokenizer_.eos_ids()).first(1));
  return absl::OkStatus();
}

}  // namespace eta::training
