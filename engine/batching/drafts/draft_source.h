// Where drafts of the next tokens of a sequence come from.
#pragma once

#include <cstdint>
#include <span>

namespace eta {

// Of one sequence. Not thread-safe.
class DraftSource {
 public:
  virtual ~DraftSource() = default;

  // Fills `draft` with ids that may follow `tokens`, the prompt and the answer so far: what was
  // given before, and more. Returns how much speaks for them, as SuffixIndex::Propose does; 0:
  // there is no draft.
  virtual int32_t Propose(std::span<const int32_t> tokens, std::span<int32_t> draft) = 0;
};

}  // namespace eta
