#include "calibration/needles/ruler_text.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace eta {
namespace {

constexpr size_t kMostSentenceBytes = 400;
constexpr size_t kParagraphBytes = 600;   // as long as SQuAD's, about
constexpr size_t kAbbreviationBytes = 4;  // "Mrs." ends no sentence
constexpr size_t kLeastWordLetters = 5;
constexpr size_t kMostWordLetters = 10;

bool EndsSentence(std::string_view word) {
  if (word.size() <= kAbbreviationBytes) return false;
  while (word.ends_with('"') || word.ends_with('\'') || word.ends_with(')')) word.remove_suffix(1);
  return word.ends_with('.') || word.ends_with('?') || word.ends_with('!');
}

// The first part of `text`: about as long as a sentence may be, and whole characters.
std::string_view LongestPart(std::string_view text) {
  size_t end = kMostSentenceBytes;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  return text.substr(0, end);
}

class TextTaker {
 public:
  void AddDocument(const std::string& document) {
    paragraph_ = text_.sentences.size();
    for (const absl::string_view piece :
         absl::StrSplit(document, absl::ByAnyChar(" \t\n\v\f\r"), absl::SkipEmpty())) {
      std::string_view word(piece.data(), piece.size());
      AddWord(word);
      // Scripts without spaces.
      for (; word.size() > kMostSentenceBytes; word.remove_prefix(LongestPart(word).size())) {
        AddPart(LongestPart(word));
      }
      AddPart(word);
    }
    EndSentence();
    EndParagraph();
  }

  RulerText Take() {
    text_.words.assign(words_.begin(), words_.end());
    return std::move(text_);
  }

 private:
  void AddWord(std::string_view word) {
    while (!word.empty() && absl::ascii_ispunct(word.back())) word.remove_suffix(1);
    while (!word.empty() && absl::ascii_ispunct(word.front())) word.remove_prefix(1);
    if (word.size() < kLeastWordLetters || word.size() > kMostWordLetters) return;
    if (std::ranges::all_of(word, absl::ascii_islower)) words_.emplace(word);
  }

  void AddPart(std::string_view part) {
    if (part.empty()) return;
    if (!sentence_.empty()) sentence_ += ' ';
    sentence_ += part;
    if (EndsSentence(part) || sentence_.size() >= kMostSentenceBytes) EndSentence();
  }

  void EndSentence() {
    if (sentence_.empty()) return;
    paragraph_bytes_ += sentence_.size();
    text_.sentences.push_back(std::move(sentence_));
    sentence_.clear();
    if (paragraph_bytes_ >= kParagraphBytes) EndParagraph();
  }

  void EndParagraph() {
    const size_t end = text_.sentences.size();
    if (end > paragraph_) text_.paragraphs.push_back({paragraph_, end});
    paragraph_ = end;
    paragraph_bytes_ = 0;
  }

  RulerText text_;
  std::set<std::string, std::less<>> words_;
  std::string sentence_;
  size_t paragraph_ = 0;  // its first sentence
  size_t paragraph_bytes_ = 0;
};

}  // namespace

RulerText MakeRulerText(std::span<const std::string> documents) {
  TextTaker taker;
  for (const std::string& document : documents) taker.AddDocument(document);
  return taker.Take();
}

}  // namespace eta
