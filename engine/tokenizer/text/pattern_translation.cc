// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/text/pattern_translation.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/files/input_file.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/text/unicode.h"

namespace eta {
namespace {

// Oniguruma's classes, as what stands between the brackets of PCRE2's.
constexpr char kSpaces[] =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
    "\\x{205F}\\x{3000}";
constexpr char kWords[] =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}\\x{24B6}-\\x{24E9}"
    "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";
constexpr char kHex[] = "0-9A-Fa-f";
// PCRE2's \S takes one character for white space that Unicode does not.
constexpr char kNoSpaces[] = "\\S\\x{180E}";

constexpr std::array kCategories = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                    "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                    "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                    "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co"};
constexpr std::array kScripts = {
    "Arabic",    "Armenian", "Bengali",  "Bopomofo", "Cyrillic", "Devanagari", "Ethiopic",
    "Georgian",  "Greek",    "Gujarati", "Gurmukhi", "Han",      "Hangul",     "Hebrew",
    "Hiragana",  "Kannada",  "Katakana", "Khmer",    "Lao",      "Latin",      "Malayalam",
    "Mongolian", "Myanmar",  "Oriya",    "Sinhala",  "Syriac",   "Tamil",      "Telugu",
    "Thaana",    "Thai",     "Tibetan",  "Common",   "Inherited"};

template <typename Names>
bool Has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string Literal(char32_t code) {
  const bool plain = code >= 0x80 || (code >= '0' && code <= '9') || (code >= 'A' && code <= 'Z') ||
                     (code >= 'a' && code <= 'z');
  if (!plain) return absl::StrFormat("\\x{%X}", static_cast<uint32_t>(code));
  std::string text;
  AppendUtf8(code, text);
  return text;
}

// One character or one class, outside of brackets or inside.
struct Element {
  std::optional<char32_t> literal;
  std::string inside;   // for a class: what stands for it between brackets; empty: nothing does
  std::string outside;  // and what stands for it alone
  bool is_property = false;
};

class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run();

 private:
  struct Group {
    size_t begin;      // in out_
    int closers;       // brackets to close with it: its own, and those of options set inside
    bool ignore_case;  // outside of it
  };

  bool AtEnd() const { return at_ == pattern_.size(); }
  bool Next(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t Take() {
    const Character character = CharacterAt(pattern_, at_);
    at_ += character.size;
    return character.code;
  }
  bool Unknown(std::string_view what) {
    if (status_.ok()) {
      status_ = absl::UnimplementedError(
          absl::StrCat("pattern: ", std::string(what), " is not supported"));
    }
    return false;
  }
  bool Broken(std::string_view what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("pattern: ", std::string(what)));
    }
    return false;
  }

  bool Step();
  bool Open();
  bool Options();
  bool Close();
  bool Quantifier(char32_t sign);
  bool Interval();
  bool Escape();
  bool Brackets();
  bool ReadEscape(Element& element);
  bool ReadProperty(bool negated, Element& element);
  bool ReadCode(size_t digits, Element& element);
  bool ReadBraced(Element& element);
  bool BracketElement(Element& element);
  bool PutLiteral(char32_t code);
  void PutAtom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
    last_literal_ = 0;
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
  std::optional<size_t> atom_;  // where in out_ begins what a quantifier would repeat
  std::vector<Group> groups_;
  bool ignore_case_ = false;
  char32_t last_literal_ = 0;  // that case is ignored of, right before
  absl::Status status_;
};

absl::StatusOr<std::string> Translation::Run() {
  if (FirstInvalidUtf8(pattern_)) return absl::InvalidArgumentError("pattern: is not UTF-8");
  groups_.push_back({.begin = 0, .closers = 0, .ignore_case = false});
  while (!AtEnd()) {
    if (!Step()) return status_;
  }
  if (groups_.size() != 1) return absl::InvalidArgumentError("pattern: a group has no end");
  out_.append(static_cast<size_t>(groups_.back().closers), ')');
  return std::move(out_);
}

bool Translation::Step() {
  const char32_t code = Take();
  switch (code) {
    case '(':
      return Open();
    case ')':
      return Close();
    case '[':
      return Brackets();
    case '\\':
      return Escape();
    case '?':
    case '*':
    case '+':
      return Quantifier(code);
    case '{':
      return Interval();
    case '|':
      out_ += '|';
      break;
    case '.':
      PutAtom("[^\\x{A}]");
      return true;
    case '^':
      out_ += "(?m:^)";
      break;
    case '$':
      out_ += "(?m:$)";
      break;
    default:
      return PutLiteral(code);
  }
  atom_.reset();
  last_literal_ = 0;
  return true;
}

bool Translation::PutLiteral(char32_t code) {
  if (ignore_case_) {
    // Oniguruma also folds characters into several: U+00DF is "ss" to it.
    if (code >= 0x80) return Unknown("(?i) with characters outside of ASCII");
    const char32_t lower = code >= 'A' && code <= 'Z' ? code + ('a' - 'A') : code;
    const bool folds = (last_literal_ == 's' && (lower == 's' || lower == 't')) ||
                       (last_literal_ == 'f' && (lower == 'f' || lower == 'i' || lower == 'l'));
    if (folds) return Unknown("(?i) with ss, st, ff, fi or fl");
    PutAtom(Literal(code));
    last_literal_ = lower;
    return true;
  }
  PutAtom(Literal(code));
  return true;
}

bool Translation::Open() {
  std::string_view opening = "(?:";
  if (Next("?")) {
    if (Next(":")) {
    } else if (Next("=")) {
      opening = "(?=";
    } else if (Next("!")) {
      opening = "(?!";
    } else if (Next(">")) {
      opening = "(?>";
    } else if (Next("<=")) {
      opening = "(?<=";
    } else if (Next("<!")) {
      opening = "(?<!";
    } else {
      return Options();
    }
  }
  groups_.push_back({.begin = out_.size(), .closers = 1, .ignore_case = ignore_case_});
  out_ += opening;
  atom_.reset();
  last_literal_ = 0;
  return true;
}

// "(?i:...)" or "(?i)", which in Ruby is a group up to the end of the one that it stands in.
bool Translation::Options() {
  bool on = true;
  bool ignore_case = ignore_case_;
  while (!AtEnd()) {
    const char32_t code = Take();
    if (code == '-') {
      on = false;
    } else if (code == 'i') {
      ignore_case = on;
    } else if (code == ':' || code == ')') {
      if (code == ':') {
        groups_.push_back({.begin = out_.size(), .closers = 1, .ignore_case = ignore_case_});
      } else {
        ++groups_.back().closers;
      }
      out_ += ignore_case ? "(?i:" : "(?-i:";
      ignore_case_ = ignore_case;
      atom_.reset();
      last_literal_ = 0;
      return true;
    } else {
      std::string name = "(?";
      AppendUtf8(code, name);
      return Unknown(Quoted(name));
    }
  }
  return Broken("a group has no end");
}

bool Translation::Close() {
  if (groups_.size() == 1) return Broken("a group ends that has not begun");
  const Group group = groups_.back();
  groups_.pop_back();
  out_.append(static_cast<size_t>(group.closers), ')');
  atom_ = group.begin;
  ignore_case_ = group.ignore_case;
  last_literal_ = 0;
  return true;
}

bool Translation::Quantifier(char32_t sign) {
  if (!atom_) return Broken("a quantifier has nothing to repeat");
  out_ += static_cast<char>(sign);
  if (Next("?")) {
    out_ += '?';
  } else if (Next("+")) {
    out_ += '+';
  }
  atom_.reset();  // a second quantifier would be read otherwise
  last_literal_ = 0;
  return true;
}

// "{n}", "{n,}", "{n,m}" or "{,m}"; else a brace.
bool Translation::Interval() {
  const size_t end = pattern_.find('}', at_);
  const std::string_view inner =
      end == std::string_view::npos ? std::string_view() : pattern_.substr(at_, end - at_);
  const size_t comma = inner.find(',');
  const auto is_number = [](std::string_view text) {
    return text.size() <= 5 &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  const std::string_view low = inner.substr(0, std::min(comma, inner.size()));
  const std::string_view high =
      comma == std::string_view::npos ? std::string_view() : inner.substr(comma + 1);
  if (inner.empty() || inner == "," || !is_number(low) || !is_number(high)) {
    return PutLiteral('{');
  }
  if (!atom_) return Broken("a quantifier has nothing to repeat");
  at_ = end + 1;
  const bool exact = comma == std::string_view::npos;
  std::string interval = absl::StrCat("{", low.empty() ? "0" : std::string(low));
  if (!exact) absl::StrAppend(&interval, ",", std::string(high));
  interval += '}';
  // In Ruby "{n}?" and "{n,m}+" are two quantifiers, one around the other.
  const char outer = Next("+") ? '+' : exact && Next("?") ? '?' : '\0';
  if (outer != '\0') {
    out_.insert(*atom_, "(?:");
    out_ += interval;
    out_ += ')';
    out_ += outer;
  } else {
    out_ += interval;
    if (Next("?")) out_ += '?';
  }
  atom_.reset();
  last_literal_ = 0;
  return true;
}

bool Translation::Escape() {
  if (AtEnd()) return Broken("ends in a backslash");
  const char code = pattern_[at_];
  const std::string boundary = absl::StrCat("(?:(?<=[", kWords, "])(?![", kWords, "])|(?<![",
                                            kWords, "])(?=[", kWords, "]))");
  std::string assertion;
  if (code == 'A' || code == 'z' || code == 'Z') {
    assertion = std::string("\\") + code;
  } else if (code == 'b') {
    assertion = boundary;
  } else if (code == 'B') {
    assertion = absl::StrCat("(?!", boundary, ")");
  }
  if (!assertion.empty()) {
    ++at_;
    out_ += assertion;
    atom_.reset();
    last_literal_ = 0;
    return true;
  }
  Element element;
  if (!ReadEscape(element)) return false;
  if (element.literal) return PutLiteral(*element.literal);
  if (ignore_case_ && element.is_property) return Unknown("\\p under (?i)");
  PutAtom(element.outside);
  return true;
}

// Behind a backslash.
bool Translation::ReadEscape(Element& element) {
  if (AtEnd()) return Broken("ends in a backslash");
  const char32_t code = Take();
  const auto set = [&element](std::string_view inside, std::string_view outside) {
    element.inside = inside;
    element.outside = outside;
    return true;
  };
  const auto in_brackets = [](const char* inner) { return absl::StrCat("[", inner, "]"); };
  const auto not_in_brackets = [](const char* inner) { return absl::StrCat("[^", inner, "]"); };
  switch (code) {
    case 's':
      return set(kSpaces, in_brackets(kSpaces));
    case 'S':
      return set(kNoSpaces, not_in_brackets(kSpaces));
    case 'w':
      return set(kWords, in_brackets(kWords));
    case 'W':
      return set("", not_in_brackets(kWords));
    case 'd':
      return set("\\p{Nd}", "\\p{Nd}");
    case 'D':
      return set("\\P{Nd}", "\\P{Nd}");
    case 'h':
      return set(kHex, in_brackets(kHex));
    case 'H':
      return set("", not_in_brackets(kHex));
    case 'p':
    case 'P':
      return ReadProperty(code == 'P', element);
    case 't':
      element.literal = '\t';
      return true;
    case 'n':
      element.literal = '\n';
      return true;
    case 'r':
      element.literal = '\r';
      return true;
    case 'f':
      element.literal = '\f';
      return true;
    case 'v':
      element.literal = '\v';
      return true;
    case 'a':
      element.literal = '\a';
      return true;
    case 'e':
      element.literal = 0x1B;
      return true;
    case 'x':
      return Next("{") ? ReadBraced(element) : ReadCode(2, element);
    case 'u':
      return ReadCode(4, element);
    default:
      break;
  }
  const bool known_by_letter = (code >= '0' && code <= '9') || (code >= 'A' && code <= 'Z') ||
                               (code >= 'a' && code <= 'z') || code >= 0x80;
  if (known_by_letter) {
    std::string name = "\\";
    AppendUtf8(code, name);
    return Unknown(Quoted(name));
  }
  element.literal = code;
  return true;
}

bool Translation::ReadProperty(bool negated, Element& element) {
  if (!Next("{")) return Broken("\\p has no name in braces");
  if (Next("^")) negated = !negated;
  const size_t end = pattern_.find('}', at_);
  if (end == std::string_view::npos) return Broken("\\p has no name in braces");
  const std::string name(pattern_.substr(at_, end - at_));
  at_ = end + 1;
  if (!Has(kCategories, name) && !Has(kScripts, name)) {
    return Unknown(absl::StrCat("\\p of ", Quoted(name)));
  }
  element.inside =
      absl::StrCat(negated ? "\\P{" : "\\p{", Has(kScripts, name) ? "sc:" : "", name, "}");
  element.outside = element.inside;
  element.is_property = true;
  return true;
}

bool Translation::ReadCode(size_t digits, Element& element) {
  uint32_t code = 0;
  for (size_t i = 0; i < digits; ++i, ++at_) {
    const char c = AtEnd() ? '\0' : pattern_[at_];
    const bool digit = c >= '0' && c <= '9';
    const bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!digit && !letter) return Broken("\\x or \\u has too few digits");
    code = code << 4 | static_cast<uint32_t>(digit ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  if (digits == 2 && code >= 0x80) return Unknown("\\x of a byte that is no character");
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
    return Broken("\\x or \\u of what is no character");
  }
  element.literal = code;
  return true;
}

bool Translation::ReadBraced(Element& element) {
  const size_t end = pattern_.find('}', at_);
  if (end == std::string_view::npos || end == at_ || end - at_ > 6) {
    return Broken("\\x{} must have 1 to 6 digits");
  }
  const size_t digits = end - at_;
  // Two digits in braces are a character, unlike two without.
  if (digits == 2) {
    Element high;
    if (!ReadCode(1, high) || !ReadCode(1, element)) return false;
    element.literal = *high.literal << 4 | *element.literal;
  } else if (!ReadCode(digits, element)) {
    return false;
  }
  ++at_;
  return true;
}

bool Translation::BracketElement(Element& element) {
  if (AtEnd()) return Broken("a class has no end");
  if (Next("\\")) {
    if (!AtEnd() && pattern_[at_] == 'b') return Unknown("\\b in a class");
    return ReadEscape(element);
  }
  if (Next("[")) return Unknown("a class in a class");
  if (Next("&&")) return Unknown("&& in a class");
  element.literal = Take();
  return true;
}

bool Translation::Brackets() {
  std::string text = Next("^") ? "[^" : "[";
  if (!AtEnd() && pattern_[at_] == ']') return Unknown("] as the first of a class");
  while (!Next("]")) {
    Element first;
    if (!BracketElement(first)) return false;
    if (ignore_case_ && first.is_property) return Unknown("\\p under (?i)");
    if (ignore_case_ && first.literal.value_or(0) >= 0x80) {
      return Unknown("(?i) with characters outside of ASCII");
    }
    if (!first.literal) {
      if (first.inside.empty()) return Unknown("\\W or \\H in a class");
      text += first.inside;
      continue;
    }
    text += Literal(*first.literal);
    const bool is_range =
        at_ + 1 < pattern_.size() && pattern_[at_] == '-' && pattern_[at_ + 1] != ']';
    if (!is_range) continue;
    ++at_;
    Element last;
    if (!BracketElement(last)) return false;
    if (!last.literal) return Unknown("a range that ends in a class");
    if (*last.literal < *first.literal) return Broken("a range is empty");
    if (ignore_case_ && *last.literal >= 0x80) {
      return Unknown("(?i) with characters outside of ASCII");
    }
    text += '-';
    text += Literal(*last.literal);
  }
  text += ']';
  PutAtom(text);
  return true;
}

}  // namespace

absl::StatusOr<std::string> TranslatePattern(std::string_view pattern) {
  return Translation(pattern).Run();
}

}  // namespace eta
