// lint: untrusted-input, fuzz-covered
#include <array>
#include <optional>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/compile/token.h"
#include "engine/chat/jinja/values/unicode.h"

namespace eta::jinja {
namespace {

constexpr std::array<std::pair<std::string_view, TokenKind>, 26> kOperators = {{
    {"//", TokenKind::kFloorDiv},   {"**", TokenKind::kPow},         {"==", TokenKind::kEq},
    {"!=", TokenKind::kNe},         {">=", TokenKind::kGreaterEq},   {"<=", TokenKind::kLessEq},
    {"+", TokenKind::kAdd},         {"-", TokenKind::kSub},          {"/", TokenKind::kDiv},
    {"*", TokenKind::kMul},         {"%", TokenKind::kMod},          {"~", TokenKind::kTilde},
    {"[", TokenKind::kLeftBracket}, {"]", TokenKind::kRightBracket}, {"(", TokenKind::kLeftParen},
    {")", TokenKind::kRightParen},  {"{", TokenKind::kLeftBrace},    {"}", TokenKind::kRightBrace},
    {">", TokenKind::kGreater},     {"<", TokenKind::kLess},         {"=", TokenKind::kAssign},
    {".", TokenKind::kDot},         {":", TokenKind::kColon},        {"|", TokenKind::kPipe},
    {",", TokenKind::kComma},       {";", TokenKind::kSemicolon},
}};

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}
bool IsNameCharacter(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// As Python splits lines, all ending with "\n", and without the last line break.
std::string NormalizeLines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t at = 0; at < source.size(); ++at) {
    if (source[at] == '\r') {
      out += '\n';
      if (at + 1 < source.size() && source[at + 1] == '\n') ++at;
    } else {
      out += source[at];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) { tokens_.source = std::move(source); }

  absl::StatusOr<Tokens> Run() {
    while (at_ < text().size()) {
      RETURN_IF_ERROR(Root());
    }
    Add(TokenKind::kEnd, at_, at_);
    return std::move(tokens_);
  }

 private:
  std::string_view text() const { return tokens_.source; }
  bool StartsWith(std::string_view prefix, size_t at) const {
    return text().substr(at).starts_with(prefix);
  }
  char At(size_t at) const { return at < text().size() ? text()[at] : '\0'; }

  void CountLines(size_t end) {
    for (; counted_ < end; ++counted_) {
      if (text()[counted_] == '\n') ++line_;
    }
  }
  void Add(TokenKind kind, size_t begin, size_t end) {
    CountLines(begin);
    tokens_.list.push_back({kind, line_, static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
  }

  size_t SkipSpace(size_t at) const {
    while (at < text().size() && IsSpace(Utf8At(text(), at))) at += Utf8Length(text()[at]);
    return at;
  }

  // Data up to a tag at `tag` whose sign is `sign`: what is left of it.
  size_t StripBefore(size_t begin, size_t tag, char sign, bool variable) const {
    if (sign == '-') {
      while (tag > begin) {
        const size_t before = Utf8Before(text(), tag);
        if (!IsSpace(Utf8At(text(), before))) break;
        tag = before;
      }
      return tag;
    }
    if (sign == '+' || variable) return tag;
    const size_t newline = text().substr(begin, tag - begin).rfind('\n');
    const bool at_start = begin == 0 || text()[begin - 1] == '\n';
    if (newline == std::string_view::npos && !at_start) return tag;
    const size_t line = newline == std::string_view::npos ? begin : begin + newline + 1;
    return SkipSpace(line) >= tag ? line : tag;
  }
  void AddData(size_t begin, size_t end) {
    if (end > begin) Add(TokenKind::kData, begin, end);
  }
  static char Sign(char c) { return c == '-' || c == '+' ? c : '\0'; }

  // Past the end of a tag, "%}" or "#}", that stands at `at`, its sign in front included; nullopt
  // where there is none.
  std::optional<size_t> TagEnd(size_t at, std::string_view mark) const {
    const char sign = Sign(At(at));
    const size_t end = at + (sign == '\0' ? 0 : 1);
    if (!StartsWith(mark, end)) return std::nullopt;
    const size_t after = end + mark.size();
    if (sign == '-') return SkipSpace(after);
    return sign == '\0' && At(after) == '\n' ? after + 1 : after;
  }

  absl::Status Root() {
    size_t tag = at_;
    while (true) {
      tag = text().find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= text().size()) {
        AddData(at_, text().size());
        at_ = text().size();
        return absl::OkStatus();
      }
      const char mark = text()[tag + 1];
      if (mark == '{' || mark == '%' || mark == '#') break;
      ++tag;
    }
    const char mark = text()[tag + 1];
    const char sign = Sign(At(tag + 2));
    AddData(at_, StripBefore(at_, tag, sign, mark == '{'));
    CountLines(tag);
    const size_t inside = tag + (sign == '\0' ? 2 : 3);
    if (mark == '#') return Comment(inside);
    if (mark == '%' && StartsWith("raw", SkipSpace(inside))) {
      return NotKnownError(line_, "statement 'raw' is not known here");
    }
    Add(mark == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, tag, inside);
    at_ = inside;
    return Inside(mark == '{');
  }

  absl::Status Comment(size_t inside) {
    at_ = inside;
    if (inside == text().size()) return absl::OkStatus();
    const size_t end = text().find("#}", inside);
    if (end == std::string_view::npos) return SyntaxError(line_, "a comment has no end");
    const bool sign = end > inside && Sign(text()[end - 1]) != '\0';
    at_ = *TagEnd(sign ? end - 1 : end, "#}");
    return absl::OkStatus();
  }

  // Whether the tag ends here: then past it.
  std::optional<size_t> End(bool variable) const {
    if (!variable) return TagEnd(at_, "%}");
    if (StartsWith("-}}", at_)) return SkipSpace(at_ + 3);
    return StartsWith("}}", at_) ? std::optional(at_ + 2) : std::nullopt;
  }

  absl::Status Inside(bool variable) {
    std::string open;  // what closes the brackets that are open
    while (at_ < text().size()) {
      if (open.empty()) {
        if (const auto end = End(variable)) {
          Add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, at_, *end);
          at_ = *end;
          return absl::OkStatus();
        }
      }
      if (const size_t after = SkipSpace(at_); after > at_) {
        at_ = after;
        continue;
      }
      CountLines(at_);
      if (IsDigit(text()[at_])) {
        RETURN_IF_ERROR(Number());
      } else if (IsNameCharacter(text()[at_])) {
        size_t end = at_;
        while (end < text().size() && IsNameCharacter(text()[end])) ++end;
        Add(TokenKind::kName, at_, end);
        at_ = end;
      } else if (text()[at_] == '"' || text()[at_] == '\'') {
        RETURN_IF_ERROR(String());
      } else if (auto status = Operator(open); !status.ok()) {
        return status;
      }
    }
    return SyntaxError(line_, "a tag has no end");
  }

  size_t Digits(size_t at) const {
    while (IsDigit(At(at))) ++at;
    return at;
  }

  absl::Status Number() {
    const bool after_dot = at_ > 0 && text()[at_ - 1] == '.';
    const size_t whole = Digits(at_);
    size_t end = whole;
    if (!after_dot) {
      if (At(end) == '.' && IsDigit(At(end + 1))) end = Digits(end + 1);
      if (At(end) == 'e' || At(end) == 'E') {
        const size_t digits = end + (At(end + 1) == '+' || At(end + 1) == '-' ? 2 : 1);
        if (IsDigit(At(digits))) end = Digits(digits);
      }
    }
    const bool zeros = end == whole && end - at_ > 1 && At(at_) == '0';
    if (IsNameCharacter(At(end)) || zeros) {
      return NotKnownError(line_, "numbers spelled like 0x1F, 1_000 or 007 are not known here");
    }
    Add(end > whole ? TokenKind::kFloat : TokenKind::kInteger, at_, end);
    at_ = end;
    return absl::OkStatus();
  }

  absl::Status String() {
    const char quote = text()[at_];
    size_t end = at_ + 1;
    while (end < text().size() && text()[end] != quote) end += text()[end] == '\\' ? 2 : 1;
    if (end >= text().size()) return SyntaxError(line_, "a string has no end");
    Add(TokenKind::kString, at_, end + 1);
    at_ = end + 1;
    return absl::OkStatus();
  }

  absl::Status Operator(std::string& open) {
    for (const auto& [spelling, kind] : kOperators) {
      if (!StartsWith(spelling, at_)) continue;
      const char c = spelling[0];
      if (c == '{' || c == '(' || c == '[') {
        open += c == '{' ? '}' : c == '(' ? ')' : ']';
      } else if (c == '}' || c == ')' || c == ']') {
        if (open.empty() || open.back() != c) {
          return SyntaxError(line_, "unexpected '" + std::string(1, c) + "'");
        }
        open.pop_back();
      }
      Add(kind, at_, at_ + spelling.size());
      at_ += spelling.size();
      return absl::OkStatus();
    }
    const std::string_view character = text().substr(at_, Utf8Length(text()[at_]));
    if (character.size() > 1) {
      return NotKnownError(line_, "names with characters outside ASCII are not known here");
    }
    return SyntaxError(line_, "unexpected character '" + std::string(character) + "'");
  }

  Tokens tokens_;
  size_t at_ = 0;
  size_t counted_ = 0;  // bytes whose line breaks are in line_
  uint32_t line_ = 1;
};

absl::Status At(uint32_t line, std::string_view sentence, absl::StatusCode code) {
  return absl::Status(code,
                      "chat template, line " + std::to_string(line) + ": " + std::string(sentence));
}

}  // namespace

absl::Status SyntaxError(uint32_t line, std::string_view sentence) {
  return At(line, sentence, absl::StatusCode::kInvalidArgument);
}

absl::Status NotKnownError(uint32_t line, std::string_view sentence) {
  return At(line, sentence, absl::StatusCode::kUnimplemented);
}

absl::StatusOr<Tokens> Tokenize(std::string_view source) {
  if (const auto invalid = FirstInvalidUtf8(source)) {
    return absl::InvalidArgumentError("chat template: not UTF-8 at byte " +
                                      std::to_string(*invalid));
  }
  return Lexer(NormalizeLines(source)).Run();
}

}  // namespace eta::jinja
