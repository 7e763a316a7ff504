// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/text/normalizer.h"

#include <utility>

#include "engine/tokenizer/text/normal_form.h"
#include "engine/tokenizer/text/unicode.h"

namespace eta {
namespace {

class NormalFormNormalizer : public Normalizer {
 public:
  explicit NormalFormNormalizer(NormalForm form) : form_(form) {}
  absl::Status Apply(MarkedText& text, RegexRun&) const override {
    ApplyNormalForm(form_, text);
    return absl::OkStatus();
  }
  // Of U+1D400, a bold letter of four bytes, NFKC makes one byte; nothing shrinks more.
  size_t max_shrink() const override { return 4; }

 private:
  const NormalForm form_;
};

class Lowercase : public Normalizer {
 public:
  absl::Status Apply(MarkedText& text, RegexRun&) const override {
    Rewrite rewrite(text);
    std::string lower;
    while (rewrite.at() < text.text.size()) {
      const Character character = CharacterAt(text.text, rewrite.at());
      lower.clear();
      AppendLowercase(character.code, lower);
      rewrite.Replace(character.size, lower);
    }
    text = rewrite.Finish();
    return absl::OkStatus();
  }
  size_t max_shrink() const override { return 3; }  // U+212A, Kelvin's sign, becomes a "k"
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Apply(MarkedText& text, RegexRun&) const override {
    const CharacterClasses& classes = CharacterClasses::Get();
    const std::string_view all = text.text;
    size_t begin = 0;
    size_t end = all.size();
    while (left_ && begin < end) {
      const Character character = CharacterAt(all, begin);
      if ((classes(character.code) & kWhiteSpace) == 0) break;
      begin += character.size;
    }
    while (right_ && end > begin) {
      const Character character = LastCharacter(all.substr(0, end));
      if ((classes(character.code) & kWhiteSpace) == 0) break;
      end -= character.size;
    }
    Rewrite rewrite(text);
    rewrite.Replace(begin, "");
    rewrite.Keep(end - begin);
    text = rewrite.Finish();
    return absl::OkStatus();
  }
  size_t max_shrink() const override { return 0; }

 private:
  const bool left_;
  const bool right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Apply(MarkedText& text, RegexRun&) const override {
    if (text.text.empty()) return absl::OkStatus();
    Rewrite rewrite(text);
    rewrite.Replace(0, prefix_);
    rewrite.Keep(text.text.size());
    text = rewrite.Finish();
    return absl::OkStatus();
  }
  size_t max_shrink() const override { return 1; }

 private:
  const std::string prefix_;
};

class ReplaceText : public Normalizer {
 public:
  ReplaceText(std::string from, std::string content)
      : from_(std::move(from)), content_(std::move(content)) {}
  absl::Status Apply(MarkedText& text, RegexRun&) const override {
    size_t match = text.text.find(from_);
    if (match == std::string::npos) return absl::OkStatus();
    Rewrite rewrite(text);
    for (; match != std::string::npos; match = text.text.find(from_, rewrite.at())) {
      rewrite.Keep(match - rewrite.at());
      rewrite.Replace(from_.size(), content_);
    }
    rewrite.Keep(text.text.size() - rewrite.at());
    text = rewrite.Finish();
    return absl::OkStatus();
  }
  size_t max_shrink() const override {
    return content_.empty() ? 0 : (from_.size() + content_.size() - 1) / content_.size();
  }

 private:
  const std::string from_;  // not empty
  const std::string content_;
};

class ReplaceRegex : public Normalizer {
 public:
  ReplaceRegex(Regex from, std::string content)
      : from_(std::move(from)), content_(std::move(content)) {}
  absl::Status Apply(MarkedText& text, RegexRun& run) const override {
    if (text.text.empty()) return absl::OkStatus();
    Rewrite rewrite(text);
    RegexMatches matches(from_, text.text, run);
    while (const auto match = matches.Next()) {
      rewrite.Keep(match->begin - rewrite.at());
      rewrite.Replace(match->end - match->begin, content_);
    }
    if (!run.status().ok()) return run.status();
    rewrite.Keep(text.text.size() - rewrite.at());
    text = rewrite.Finish();
    return absl::OkStatus();
  }
  size_t max_shrink() const override { return 0; }

 private:
  const Regex from_;
  const std::string content_;
};

}  // namespace

std::unique_ptr<const Normalizer> MakeNormalForm(NormalForm form) {
  return std::make_unique<NormalFormNormalizer>(form);
}
std::unique_ptr<const Normalizer> MakeLowercase() {
  return std::make_unique<Lowercase>();
}
std::unique_ptr<const Normalizer> MakeStrip(bool left, bool right) {
  return std::make_unique<Strip>(left, right);
}
std::unique_ptr<const Normalizer> MakePrepend(std::string prefix) {
  return std::make_unique<Prepend>(std::move(prefix));
}
std::unique_ptr<const Normalizer> MakeReplace(std::string from, std::string content) {
  return std::make_unique<ReplaceText>(std::move(from), std::move(content));
}
std::unique_ptr<const Normalizer> MakeReplace(Regex from, std::string content) {
  return std::make_unique<ReplaceRegex>(std::move(from), std::move(content));
}

}  // namespace eta
