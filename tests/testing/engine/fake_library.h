// A library of grammars for tests of what surrounds one: texts instead of grammars. A format whose
// source is a word of the list below behaves badly while it is compiled.
#pragma once

#include <csignal>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/format/guide/bound_format.h"
#include "engine/format/guide/text_matcher.h"
#include "engine/format/library/grammar_library.h"

namespace eta::testing {

// Matches one text.
class TextGuide final : public TextMatcher {
 public:
  TextGuide(std::shared_ptr<const FormatVocabulary> vocabulary, std::string text)
      : vocabulary_(std::move(vocabulary)), text_(std::move(text)) {}

  bool Fill(std::span<uint32_t> mask) override {
    for (uint32_t& word : mask) word = 0;
    for (int32_t id = 0; id < vocabulary_->size; ++id) {
      if (Fits(id)) mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
    }
    return true;
  }
  bool Accept(int32_t token) override {
    return Fits(token) && AcceptText(vocabulary_->IsEnd(token) ? "" : vocabulary_->Bytes(token));
  }
  bool AcceptText(std::string_view text) override {
    if (!std::string_view(text_).substr(at_).starts_with(text)) return false;
    steps_.push_back(text.size());
    at_ += text.size();
    return true;
  }
  void Rollback(int32_t count) override {
    for (; count > 0; --count) {
      at_ -= steps_.back();
      steps_.pop_back();
    }
  }
  bool Complete() const override { return at_ == text_.size(); }
  absl::Status failure() const override { return absl::OkStatus(); }

 private:
  bool Fits(int32_t id) const {
    if (vocabulary_->IsEnd(id)) return Complete();
    const std::string_view bytes = vocabulary_->Bytes(id);
    return !bytes.empty() && !vocabulary_->IsSpecial(id) &&
           std::string_view(text_).substr(at_).starts_with(bytes);
  }

  const std::shared_ptr<const FormatVocabulary> vocabulary_;
  const std::string text_;
  size_t at_ = 0;
  std::vector<size_t> steps_;
};

class FakeLibrary final : public GrammarLibrary {
 public:
  explicit FakeLibrary(const FormatVocabulary& vocabulary)
      : vocabulary_(std::make_shared<FormatVocabulary>(vocabulary)) {}

  absl::StatusOr<std::string> Compile(const AnswerFormat& format) const override {
    const std::string& source = format.source;
    if (source == "sleep") std::this_thread::sleep_for(std::chrono::hours(1));
    if (source == "pause") std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (source == "eat") Eat();
    if (source == "crash") std::raise(SIGSEGV);
    if (source == "invalid") return absl::InvalidArgumentError("not\n\xff a format");
    if (source == "large") return std::string(1 << 20, 'x');
    if (source == "garbage") return std::string("\0\xff\x01 nothing", 11);
    return "compiled " + source;
  }

  absl::StatusOr<std::shared_ptr<const CompiledFormat>> Read(
      const AnswerFormat& format, const std::string& compiled) const override {
    if (compiled != "compiled " + format.source) return absl::InternalError("no compiled format");
    return std::make_shared<BoundFormat>(
        BoundFormat::Parts{.format = format,
                           .vocabulary = vocabulary_,
                           .make_matcher = [vocabulary = vocabulary_, text = format.source] {
                             return std::make_unique<TextGuide>(vocabulary, text);
                           }});
  }

 private:
  static void Eat() {
    std::vector<std::unique_ptr<char[]>> eaten;
    while (true) eaten.push_back(std::make_unique<char[]>(1 << 20));
  }

  const std::shared_ptr<const FormatVocabulary> vocabulary_;
};

inline absl::StatusOr<std::unique_ptr<GrammarLibrary>> MakeFakeLibrary(
    const FormatVocabulary& vocabulary) {
  return std::make_unique<FakeLibrary>(vocabulary);
}

inline AnswerFormat RegexOf(const std::string& source) {
  return {.kind = AnswerFormatKind::kRegex, .source = source};
}

// A token for each byte of printable ASCII and the line break, some words, and special tokens.
inline FormatVocabulary SmallVocabulary() {
  FormatVocabulary vocabulary;
  for (char c = ' '; c <= '~'; ++c) vocabulary.tokens.emplace_back(1, c);
  for (const char* const word : {"\n", "\xc3", "\xa9", "ab", "</", "think", ">1", ">x", "<think>",
                                 "</think>", "{\"", "\":", "true", "[TOOL]", "</s>", "<s>"}) {
    vocabulary.tokens.emplace_back(word);
  }
  const auto count = static_cast<int32_t>(vocabulary.tokens.size());
  vocabulary.special = {count - 3, count - 2, count - 1};
  vocabulary.ends = {count - 2};
  vocabulary.size = count + 7;  // the model's head is padded
  return vocabulary;
}

// The first token that is `text`.
inline int32_t TokenOf(const FormatVocabulary& vocabulary, std::string_view text) {
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.tokens[id] == text) return static_cast<int32_t>(id);
  }
  return -1;
}

inline bool Has(const std::vector<uint32_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

// Which tokens may come next.
inline std::vector<uint32_t> MaskOf(AnswerGuide& guide, const FormatVocabulary& vocabulary) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocabulary.size) + 31) / 32);
  if (!guide.Fill(mask)) mask.assign(mask.size(), ~uint32_t{0});
  return mask;
}

}  // namespace eta::testing
