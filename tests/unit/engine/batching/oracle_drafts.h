// Drafts of known answers, for tests.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "engine/batching/drafts/draft_source.h"

namespace eta::testing {

// Knows the answers, and says something else for every fifth token or so.
class Oracle final : public DraftSource {
 public:
  Oracle(std::vector<int32_t> text, int32_t vocab_size, uint32_t seed)
      : text_(std::move(text)), vocab_size_(vocab_size), random_(seed) {}

  int32_t Propose(std::span<const int32_t> tokens, std::span<int32_t> draft) override {
    for (size_t i = 0; i < draft.size(); ++i) {
      const size_t at = tokens.size() + i;
      const bool right =
          at < text_.size() && std::uniform_real_distribution<double>(0.0, 1.0)(random_) < 0.8;
      draft[i] =
          right ? text_[at] : std::uniform_int_distribution<int>(0, vocab_size_ - 1)(random_);
    }
    return 8;
  }

 private:
  const std::vector<int32_t> text_;
  const int32_t vocab_size_;
  std::mt19937 random_;
};

}  // namespace eta::testing
