// What a template is read as: a list of tokens, in the terms of Jinja's own lexer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eta::jinja {

enum class TokenKind : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,  // with its quotes
  kInteger,
  kFloat,
  // Operators
  kAdd,
  kAssign,
  kColon,
  kComma,
  kDiv,
  kDot,
  kEq,
  kFloorDiv,
  kGreater,
  kGreaterEq,
  kLeftBrace,
  kLeftBracket,
  kLeftParen,
  kLess,
  kLessEq,
  kMod,
  kMul,
  kNe,
  kPipe,
  kPow,
  kRightBrace,
  kRightBracket,
  kRightParen,
  kSemicolon,
  kSub,
  kTilde,
  // What the compiler calls the operators that are spelled as names
  kIn,
  kNotIn,
  kEnd,
};

struct Token {
  TokenKind kind;
  uint32_t line;   // the first is 1
  uint32_t begin;  // bytes of Tokens::source
  uint32_t end;
};

struct Tokens {
  std::string source;       // line breaks are "\n"
  std::vector<Token> list;  // ends with kEnd

  std::string_view Text(const Token& token) const {
    return std::string_view(source).substr(token.begin, token.end - token.begin);
  }
};

// Jinja's lexer with trim_blocks and lstrip_blocks. INVALID_ARGUMENT or UNIMPLEMENTED, with the
// line.
absl::StatusOr<Tokens> Tokenize(std::string_view source);

// Of a literal with its quotes, what Python's "unicode-escape" makes of it. INVALID_ARGUMENT for an
// escape that is none; UNIMPLEMENTED for "\N{...}" and for surrogates, which UTF-8 does not have.
absl::StatusOr<std::string> Unquote(std::string_view literal);

// "chat template, line 3: SENTENCE".
absl::Status SyntaxError(uint32_t line, std::string_view sentence);
absl::Status NotKnownError(uint32_t line, std::string_view sentence);

}  // namespace eta::jinja
