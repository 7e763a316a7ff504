// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/text/splits.h"

#include <utility>

#include "engine/tokenizer/text/unicode.h"

namespace eta {
namespace {

class SplitByRegex : public PreTokenizer {
 public:
  SplitByRegex(Regex pattern, MatchBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  bool keeps_all() const override { return behavior_ != MatchBehavior::kRemoved; }
  void Cut(TextPiece piece, CutRun& run, PieceSink sink) const override {
    MatchSplitter splitter(behavior_, piece, sink);
    RegexMatches matches(pattern_, piece.text, run.regex);
    size_t end = 0;
    while (const auto match = matches.Next()) {
      if (match->begin > end) splitter.Add(match->begin, invert_);
      splitter.Add(match->end, !invert_);
      end = match->end;
    }
    if (end < piece.text.size()) splitter.Add(piece.text.size(), invert_);
    splitter.Finish();
  }

 private:
  const Regex pattern_;
  const MatchBehavior behavior_;
  const bool invert_;
};

class SplitByText : public PreTokenizer {
 public:
  SplitByText(std::string text, MatchBehavior behavior, bool invert)
      : text_(std::move(text)), behavior_(behavior), invert_(invert) {}
  bool keeps_all() const override { return behavior_ != MatchBehavior::kRemoved; }
  void Cut(TextPiece piece, CutRun&, PieceSink sink) const override {
    MatchSplitter splitter(behavior_, piece, sink);
    size_t end = 0;
    for (size_t at = piece.text.find(text_); at != std::string_view::npos;
         at = piece.text.find(text_, end)) {
      if (at > end) splitter.Add(at, invert_);
      end = at + text_.size();
      splitter.Add(end, !invert_);
    }
    if (end < piece.text.size()) splitter.Add(piece.text.size(), invert_);
    splitter.Finish();
  }

 private:
  const std::string text_;
  const MatchBehavior behavior_;
  const bool invert_;
};

class SplitByScanner : public PreTokenizer {
 public:
  explicit SplitByScanner(Scanner scanner) : scanner_(scanner) {}
  void Cut(TextPiece piece, CutRun&, PieceSink sink) const override {
    for (size_t at = 0; at < piece.text.size();) {
      const size_t end = scanner_(piece.text, at);
      sink({.text = piece.text.substr(at, end - at), .begins_text = piece.begins_text && at == 0});
      at = end;
    }
  }

 private:
  const Scanner scanner_;
};

bool IsDigit(char32_t code) {
  return (CharacterClasses::Get()(code) & kNumber) != 0;
}
bool IsPunctuation(char32_t code) {
  if (code < 0x80) {
    return code > ' ' && code < 0x7F && (CharacterClasses::Get()(code) & (kLetter | kNumber)) == 0;
  }
  return (CharacterClasses::Get()(code) & kPunctuation) != 0;
}
bool IsWhiteSpace(char32_t code) {
  return (CharacterClasses::Get()(code) & kWhiteSpace) != 0;
}

// Each character of a kind is a match.
class SplitByCharacter : public PreTokenizer {
 public:
  SplitByCharacter(bool (*matches)(char32_t), MatchBehavior behavior)
      : matches_(matches), behavior_(behavior) {}
  bool keeps_all() const override { return behavior_ != MatchBehavior::kRemoved; }
  void Cut(TextPiece piece, CutRun&, PieceSink sink) const override {
    MatchSplitter splitter(behavior_, piece, sink);
    size_t end = 0;
    for (size_t at = 0; at < piece.text.size();) {
      const Character character = CharacterAt(piece.text, at);
      const size_t next = at + character.size;
      if (matches_(character.code)) {
        if (at > end) splitter.Add(at, false);
        splitter.Add(next, true);
        end = next;
      }
      at = next;
    }
    if (end < piece.text.size()) splitter.Add(piece.text.size(), false);
    splitter.Finish();
  }

 private:
  bool (*const matches_)(char32_t);
  const MatchBehavior behavior_;
};

class Whitespace : public PreTokenizer {
 public:
  bool keeps_all() const override { return false; }
  void Cut(TextPiece piece, CutRun&, PieceSink sink) const override {
    const CharacterClasses& classes = CharacterClasses::Get();
    size_t begin = 0;  // of the run that ends at `at`
    CharacterClass kind = kWhiteSpace;
    for (size_t at = 0; at <= piece.text.size();) {
      Character character = {0, 1};
      CharacterClass now = 0;
      if (at < piece.text.size()) {
        character = CharacterAt(piece.text, at);
        now = classes(character.code) & (kWord | kWhiteSpace);
      }
      if (now != kind || at == piece.text.size()) {
        if (kind != kWhiteSpace && at > begin) {
          sink({.text = piece.text.substr(begin, at - begin),
                .begins_text = piece.begins_text && begin == 0});
        }
        begin = at;
        kind = now;
      }
      at += character.size;
    }
  }
};

// A piece that begins with `prefix`, which is put before it if it is not there.
std::string_view WithPrefix(std::string_view text, std::string_view prefix, std::string& changed) {
  if (text.starts_with(prefix)) return text;
  changed.assign(prefix);
  changed += text;
  return changed;
}

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex)
      : add_prefix_space_(add_prefix_space), use_regex_(use_regex) {}
  void Cut(TextPiece piece, CutRun& run, PieceSink sink) const override {
    std::string changed;
    if (add_prefix_space_) piece.text = WithPrefix(piece.text, " ", changed);
    if (use_regex_) {
      SplitByScanner(Gpt2Scanner()).Cut(piece, run, sink);
    } else {
      sink(piece);
    }
  }

 private:
  const bool add_prefix_space_;
  const bool use_regex_;
};

class Metaspace : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}
  void Cut(TextPiece piece, CutRun&, PieceSink sink) const override {
    std::string changed;
    for (const char c : piece.text) {
      if (c == ' ') {
        changed += replacement_;
      } else {
        changed += c;
      }
    }
    const bool prepends = scheme_ == PrependScheme::kAlways ||
                          (scheme_ == PrependScheme::kFirst && piece.begins_text);
    if (prepends && !changed.starts_with(replacement_)) changed.insert(0, replacement_);
    const std::string_view text = changed;
    for (size_t at = 0; at < text.size();) {
      size_t end = text.size();
      if (split_) end = std::min(end, text.find(replacement_, at + 1));
      sink({.text = text.substr(at, end - at), .begins_text = piece.begins_text && at == 0});
      at = end;
    }
  }

 private:
  const std::string replacement_;  // one character
  const PrependScheme scheme_;
  const bool split_;
};

}  // namespace

PreTokenizerPtr MakeSplit(Regex pattern, MatchBehavior behavior, bool invert) {
  return std::make_unique<SplitByRegex>(std::move(pattern), behavior, invert);
}
PreTokenizerPtr MakeSplit(std::string text, MatchBehavior behavior, bool invert) {
  return std::make_unique<SplitByText>(std::move(text), behavior, invert);
}
PreTokenizerPtr MakeScannerSplit(Scanner scanner) {
  return std::make_unique<SplitByScanner>(scanner);
}
PreTokenizerPtr MakeDigits(bool individual) {
  return std::make_unique<SplitByCharacter>(
      &IsDigit, individual ? MatchBehavior::kIsolated : MatchBehavior::kContiguous);
}
PreTokenizerPtr MakePunctuation(MatchBehavior behavior) {
  return std::make_unique<SplitByCharacter>(&IsPunctuation, behavior);
}
PreTokenizerPtr MakeWhitespace() {
  return std::make_unique<Whitespace>();
}
PreTokenizerPtr MakeWhitespaceSplit() {
  return std::make_unique<SplitByCharacter>(&IsWhiteSpace, MatchBehavior::kRemoved);
}
PreTokenizerPtr MakeByteLevel(bool add_prefix_space, bool use_regex) {
  return std::make_unique<ByteLevel>(add_prefix_space, use_regex);
}
PreTokenizerPtr MakeMetaspace(std::string replacement, PrependScheme scheme, bool split) {
  return std::make_unique<Metaspace>(std::move(replacement), scheme, split);
}

}  // namespace eta
