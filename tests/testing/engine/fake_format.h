// Formats of answers that a test makes up: a judge of texts stands for what a grammar would say.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/format/answer_guide.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/params/sampling.h"

namespace eta::testing {

// What a text is to a format: no answer begins so, one may, or it is one.
enum class Fit : uint8_t { kNone, kBegun, kWhole };
using Judge = std::function<Fit(std::string_view)>;

// At least `least` digits, and at most `most`.
inline Judge Digits(size_t least, size_t most) {
  return [=](std::string_view text) {
    const bool digits = std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || text.size() > most) return Fit::kNone;
    return text.size() < least ? Fit::kBegun : Fit::kWhole;
  };
}

// One of the words, none of which begins another.
inline Judge OneOf(std::vector<std::string> words) {
  return [words = std::move(words)](std::string_view text) {
    Fit fit = Fit::kNone;
    for (const std::string& word : words) {
      if (word == text) return Fit::kWhole;
      if (word.starts_with(text)) fit = Fit::kBegun;
    }
    return fit;
  };
}

// The tokenizer must outlive it. Thread-safe.
class FakeFormat final : public CompiledFormat {
 public:
  struct Options {
    Judge judge;
    std::vector<int32_t> ends = {2};  // tokens that end a text
    bool binds = true;                // false: every token may come, always
    int refuses_after = -1;           // so many tokens, the next one does not fit
    int fails_after = -1;             // so many tokens, nothing fits, for the reason below
    bool late = false;                // the mask does not say so yet
    absl::Status failure;
    bool denies = false;     // whole answers are not what was asked for
    bool no_memory = false;  // to find out what may come
    std::string reasoning_begin = {};
    std::function<void()> on_fill;
  };

  FakeFormat(const Tokenizer& tokenizer, Options options)
      : tokenizer_(tokenizer), options_(std::move(options)) {
    format_.reasoning_begin = options_.reasoning_begin;
  }

  const AnswerFormat& format() const override { return format_; }
  std::unique_ptr<AnswerGuide> NewGuide(bool in_reasoning) const override {
    return std::make_unique<Guide>(*this, in_reasoning ? format_.reasoning_begin : std::string());
  }
  absl::Status Check(std::string_view answer) const override {
    if (!options_.denies && options_.judge(answer) == Fit::kWhole) return absl::OkStatus();
    return absl::InternalError("not what was asked for: '" + std::string(answer) + "'");
  }
  size_t bytes() const override { return 0; }

  // By all guides.
  std::vector<int32_t> accepted() const {
    const std::lock_guard lock(mutex_);
    return accepted_;
  }

 private:
  class Guide final : public AnswerGuide {
   public:
    Guide(const FakeFormat& format, const std::string& begun)
        : format_(format), text_(begun), begun_(begun.size()) {}

    bool Fill(std::span<uint32_t> mask) override {
      const Options& options = format_.options_;
      if (options.on_fill) options.on_fill();
      if (options.no_memory) throw std::bad_alloc();
      if (!options.binds) return false;
      std::ranges::fill(mask, 0);
      if (!options.late && !failure().ok()) return true;
      for (int32_t id = 0; id < format_.tokenizer_.vocab_size(); ++id) {
        if (Fits(id)) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
      }
      return true;
    }
    bool Accept(int32_t token) override {
      if (static_cast<int>(ends_.size()) == format_.options_.refuses_after) return false;
      if (format_.options_.binds && !Fits(token)) return false;
      text_ += format_.tokenizer_.ShownBytes(token);
      ends_.push_back(text_.size());
      const std::lock_guard lock(format_.mutex_);
      format_.accepted_.push_back(token);
      return true;
    }
    void Rollback(int32_t count) override {
      ends_.resize(ends_.size() - static_cast<size_t>(count));
      text_.resize(ends_.empty() ? begun_ : ends_.back());
    }
    absl::Status failure() const override {
      const Options& options = format_.options_;
      const bool fails = static_cast<int>(ends_.size()) == options.fails_after;
      return fails ? options.failure : absl::OkStatus();
    }
    bool Complete() const override { return format_.options_.judge(text_) == Fit::kWhole; }

   private:
    bool Fits(int32_t id) {
      if (std::ranges::count(format_.options_.ends, id) > 0) return Complete();
      const std::string_view bytes = format_.tokenizer_.PieceBytes(id);
      if (bytes.empty()) return false;
      const size_t length = text_.size();
      text_.append(bytes);
      const bool fits = format_.options_.judge(text_) != Fit::kNone;
      text_.resize(length);
      return fits;
    }

    const FakeFormat& format_;
    std::string text_;
    const size_t begun_;        // bytes of text_ that stand in the prompt
    std::vector<size_t> ends_;  // of each token, in text_
  };

  const Tokenizer& tokenizer_;
  const Options options_;
  AnswerFormat format_;
  mutable std::mutex mutex_;
  mutable std::vector<int32_t> accepted_;
};

}  // namespace eta::testing
