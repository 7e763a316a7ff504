// What an answer that is bound by a format may go on with, token by token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "engine/request/answers/answer_format.h"

namespace eta {

// One answer's way through its format. Not thread-safe; different guides may be used at one time.
class AnswerGuide {
 public:
  virtual ~AnswerGuide() = default;

  // Which tokens may come next, [ceil(V / 32)], bit i % 32 of word i / 32 for token i: an end token
  // where the answer may end here, any other where it fits. False: every token may, and `mask` says
  // nothing.
  virtual bool Fill(std::span<uint32_t> mask) = 0;
  // Takes the next token of the answer. False: it does not fit, and nothing changed.
  virtual bool Accept(int32_t token) = 0;
  // Takes back the newest `count` tokens that were accepted. REQUIRES: there are as many.
  virtual void Rollback(int32_t count) = 0;
  // Whether the answer may end here.
  virtual bool Complete() const = 0;
  // Why nothing fits any more, whatever the format says. DEADLINE_EXCEEDED (FORMAT_TOO_SLOW): it
  // takes too long to follow; INTERNAL (INTERNAL_ERROR): what follows it has failed. OK: nothing of
  // that kind.
  virtual absl::Status failure() const = 0;
};

// A format for the vocabulary of one model. Immutable, so any number of threads may use it.
class CompiledFormat {
 public:
  virtual ~CompiledFormat() = default;

  virtual const AnswerFormat& format() const = 0;
  // `in_reasoning`: the prompt has begun the reasoning, so that the answer goes on behind its begin
  // marker. Says nothing where the format has no markers of reasoning.
  virtual std::unique_ptr<AnswerGuide> NewGuide(bool in_reasoning) const = 0;
  // Whether a whole answer is what the format asks for, told apart from the guide that led to it.
  // INTERNAL names what is wrong with it, and where.
  virtual absl::Status Check(std::string_view answer) const = 0;
  // What it holds in memory.
  virtual size_t bytes() const = 0;
};

}  // namespace eta
