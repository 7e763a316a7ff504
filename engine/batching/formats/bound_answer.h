// An answer that a format binds: which tokens may come next, and whether it became what the format
// asks for.
//
// What else ends an answer gives way to the format, where both cannot be had:
// - min_tokens. Ends of text and stop ids cannot be drawn before it, but where nothing else may
//   come. Then they may, and end the answer.
// - ignore_eos. The end of text cannot be drawn, but where nothing else may come.
// - A stop id that the format does not take where it stands cannot be drawn. One that can be drawn
//   ends the answer, complete or not, as does a stop string.
//
// A drawn token is taken by the guide when that is asked next, mostly by Fill: between two steps,
// in which the device rests, nobody waits for the guides of all answers.
//
// Fill may run on any thread, while nothing else of this answer is called. All else is the step
// thread's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/format/answer_guide.h"
#include "engine/model/model_config.h"
#include "engine/request/request.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {

class BoundAnswer {
 public:
  // What may come next.
  enum class Next : uint8_t {
    kAny,       // every token
    kMasked,    // those of mask(), at least one
    kNothing,   // no token: the answer is complete
    kStuck,     // no token, and it is not complete, or its guide has failed or took no drawn one
    kNoMemory,  // Fill had no memory
  };

  // REQUIRES: the request has a format. `tokenizer` must outlive this. Of a prompt that ends inside
  // of reasoning the answer goes on with it.
  BoundAnswer(const Request& request, const ModelConfig& config, const Tokenizer& tokenizer);

  // How many of these tokens, none of which ends the answer, could come next, one after the other.
  size_t CountFitting(std::span<const int32_t> drafts);
  // The next Fill fills also what may come behind each of `drafts`, as if those up to it had been
  // accepted; but not what may come behind fewer than `from` of them.
  void Expect(std::span<const int32_t> drafts, size_t from = 0);

  // Finds out what may come next. It may run again.
  void Fill();

  // Of the last Fill, behind the first `ahead` drafts:
  Next next(size_t ahead = 0) const { return places_[ahead].next; }
  bool may_draw(size_t ahead = 0) const {
    return next(ahead) == Next::kAny || next(ahead) == Next::kMasked;
  }
  // [MaskWords(V)]; empty where every token may come.
  std::span<const uint32_t> mask(size_t ahead = 0) const {
    return next(ahead) == Next::kMasked ? std::span<const uint32_t>(places_[ahead].mask)
                                        : std::span<const uint32_t>();
  }
  std::chrono::nanoseconds fill_time() const { return fill_time_; }
  // Why the answer ends where no token may come. OK: it is complete. AnswerGuide::failure; else
  // INTERNAL, ANSWER_INVALID: the format did not take a drawn token; else FAILED_PRECONDITION
  // (UNSUPPORTED_BY_MODEL): the vocabulary has nothing that fits.
  absl::Status Undrawn(size_t ahead = 0) const;

  // Adds a drawn token that does not end the answer. RESOURCE_EXHAUSTED: no memory.
  absl::Status Accept(int32_t token);

  bool complete();
  // Whether an answer that ended so is what the format asks for; INTERNAL, ANSWER_INVALID. One that
  // was cut off, or stopped before it was complete, need not be, but what Undrawn has it fails for.
  absl::Status Check(FinishReason reason);

 private:
  // What may come at one place of the answer.
  struct Place {
    std::vector<uint32_t> mask;
    Next next = Next::kAny;
  };

  // Has the guide accept tokens as far as it does, and tells `taken` of each how many they are.
  template <typename Taken>
  size_t Take(std::span<const int32_t> tokens, const Taken& taken);
  // Has the guide take the tokens that were accepted since it was asked last.
  void CatchUp();
  absl::Status Refused() const;
  void Fill(Place& place, int32_t num_tokens);
  // Takes the ends that may not come yet out of the mask, but where nothing else is in it.
  void ForbidEnds(Place& place, int32_t num_tokens);
  void Forbid(std::span<const int32_t> ends, Place& place);

  const std::shared_ptr<const CompiledFormat> format_;
  const std::unique_ptr<AnswerGuide> guide_;
  const Tokenizer& tokenizer_;
  const int64_t vocab_size_;
  const int32_t min_tokens_;
  std::vector<int32_t> early_ends_;  // that may not come before min_tokens
  std::vector<int32_t> late_ends_;   // nor after it
  std::vector<int32_t> taken_;       // of these: those that ForbidEnds took out
  std::vector<int32_t> untaken_;     // by the guide yet
  std::optional<int32_t> refused_;   // the token that it did not take
  std::vector<int32_t> drafts_;
  size_t from_ = 0;            // of places_, the first that is filled
  std::vector<Place> places_;  // the next one, and those behind drafts
  bool lost_ = false;          // where the guide stands, for want of memory
  std::chrono::nanoseconds fill_time_{0};
  int32_t num_tokens_ = 0;
  // Special tokens as the vocabulary spells them; with the marker that begins the reasoning, even
  // if it stands in the prompt.
  std::string text_;
};

}  // namespace eta
