// The tokens of a template, one after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/chat/jinja/compile/token.h"

namespace eta::jinja {

class TokenStream {
 public:
  explicit TokenStream(const Tokens& tokens) : tokens_(tokens) {}

  const Token& current() const { return tokens_.list[at_]; }
  const Token& next() const { return tokens_.list[std::min(at_ + 1, tokens_.list.size() - 1)]; }
  uint32_t line() const { return current().line; }
  std::string_view text() const { return tokens_.Text(current()); }
  std::string_view text(const Token& token) const { return tokens_.Text(token); }
  bool Is(TokenKind kind) const { return current().kind == kind; }
  bool IsName(std::string_view name) const { return Is(TokenKind::kName) && text() == name; }
  bool NextIsName(std::string_view name) const {
    return next().kind == TokenKind::kName && text(next()) == name;
  }
  void Skip() { at_ = std::min(at_ + 1, tokens_.list.size() - 1); }
  bool SkipIf(TokenKind kind) {
    if (!Is(kind)) return false;
    Skip();
    return true;
  }
  bool SkipIfName(std::string_view name) {
    if (!IsName(name)) return false;
    Skip();
    return true;
  }

  absl::Status Unexpected(std::string_view wanted) const {
    const std::string found =
        Is(TokenKind::kEnd) ? "the end of the template" : "'" + std::string(text()) + "'";
    return SyntaxError(line(), "expected " + std::string(wanted) + ", got " + found);
  }
  absl::Status Expect(TokenKind kind, std::string_view wanted) {
    return SkipIf(kind) ? absl::OkStatus() : Unexpected(wanted);
  }

 private:
  const Tokens& tokens_;
  size_t at_ = 0;
};

}  // namespace eta::jinja
