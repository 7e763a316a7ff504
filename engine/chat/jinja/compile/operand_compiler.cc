// lint: untrusted-input, fuzz-covered
// Operands of expressions: literals and names, and what may follow them.
#include <charconv>
#include <optional>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/compile/expression_compiler.h"
#include "engine/chat/jinja/natives/native.h"

namespace eta::jinja {
namespace {

// States of a kUnary frame.
constexpr uint8_t kBegin = 0, kSign = 1, kPostfix = 2, kCallDone = 3, kFilters = 4, kFilterDone = 5,
                  kTestDone = 6, kFilterCallDone = 7;

}  // namespace

absl::Status ExpressionCompiler::Unary() {
  Frame& frame = top();
  switch (frame.state) {
    case kBegin:
      if (tokens_.Is(TokenKind::kSub) || tokens_.Is(TokenKind::kAdd)) {
        frame.pending = tokens_.current().kind;
        tokens_.Skip();
        frame.state = kSign;
        Push({.rule = Rule::kUnary, .condition = false});
      } else {
        frame.state = kPostfix;
        Push({.rule = Rule::kPrimary});
      }
      return absl::OkStatus();
    case kSign:
      code_.Emit(frame.pending == TokenKind::kSub ? Op::kNegate : Op::kPositive, frame.line);
      frame.state = kPostfix;
      return absl::OkStatus();
    case kPostfix:
      return Postfix();
    case kCallDone:
    case kFilterCallDone:
      code_.Emit(Op::kCall, frame.line, 0, code_.Call(std::exchange(shape_, {})));
      frame.state = frame.state == kCallDone ? kPostfix : kFilters;
      return absl::OkStatus();
    case kFilters:
      return FilterOrTest();
    case kFilterDone:
      EmitFilter();
      frame.state = kFilters;
      return absl::OkStatus();
    default: {  // kTestDone
      if (frame.level == 1) shape_ = {.positional = 1, .names = {}};
      if (frame.unknown.empty()) {
        code_.Emit(Op::kTest, frame.line, frame.count, code_.Call(std::exchange(shape_, {})));
      } else {
        code_.Emit(Op::kRefuse, frame.line, code_.TextConstant(frame.unknown));
      }
      if (frame.flag) code_.Emit(Op::kNot, frame.line);
      frame.state = kFilters;
      return absl::OkStatus();
    }
  }
}

// .NAME, .NUMBER, [...] and (...) after a value.
absl::Status ExpressionCompiler::Postfix() {
  Frame& frame = top();
  frame.line = tokens_.line();
  if (tokens_.SkipIf(TokenKind::kDot)) {
    if (tokens_.Is(TokenKind::kName)) {
      code_.Emit(Op::kAttribute, frame.line, code_.TextConstant(std::string(tokens_.text())));
      tokens_.Skip();
      return absl::OkStatus();
    }
    if (!tokens_.Is(TokenKind::kInteger)) return tokens_.Unexpected("a name or number");
    RETURN_IF_ERROR(Integer());
    code_.Emit(Op::kItem, frame.line);
    return absl::OkStatus();
  }
  if (tokens_.SkipIf(TokenKind::kLeftBracket)) {
    Push({.rule = Rule::kSubscript});
  } else if (tokens_.SkipIf(TokenKind::kLeftParen)) {
    frame.state = kCallDone;
    Push({.rule = Rule::kArguments});
  } else if (frame.condition) {
    frame.state = kFilters;
  } else {
    Pop();
  }
  return absl::OkStatus();
}

absl::Status ExpressionCompiler::FilterOrTest() {
  Frame& frame = top();
  if (tokens_.SkipIf(TokenKind::kPipe)) {
    frame.state = kFilterDone;
    return BeginFilter();
  }
  if (tokens_.SkipIfName("is")) {
    frame.state = kTestDone;
    return BeginTest();
  }
  frame.line = tokens_.line();
  if (tokens_.SkipIf(TokenKind::kLeftParen)) {
    frame.state = kFilterCallDone;
    Push({.rule = Rule::kArguments});
  } else {
    Pop();
  }
  return absl::OkStatus();
}

// A test's name, then its arguments in brackets or one operand without.
absl::Status ExpressionCompiler::BeginTest() {
  Frame& frame = top();
  frame.line = tokens_.line();
  frame.flag = tokens_.SkipIfName("not");
  frame.level = 0;
  if (!tokens_.Is(TokenKind::kName)) return tokens_.Unexpected("the name of a test");
  const auto test = FindTest(tokens_.text());
  frame.count = test.value_or(0);
  frame.unknown = test ? "" : "test '" + std::string(tokens_.text()) + "' is not known here";
  tokens_.Skip();
  shape_ = {};
  if (tokens_.SkipIf(TokenKind::kLeftParen)) {
    Push({.rule = Rule::kArguments});
    return absl::OkStatus();
  }
  switch (tokens_.current().kind) {
    case TokenKind::kName:
      if (tokens_.IsName("else") || tokens_.IsName("or") || tokens_.IsName("and")) break;
      if (tokens_.IsName("is")) return SyntaxError(tokens_.line(), "tests cannot be chained by is");
      [[fallthrough]];
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
    case TokenKind::kLeftBracket:
    case TokenKind::kLeftBrace:
      frame.level = 1;
      Push({.rule = Rule::kUnary, .condition = false});
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

absl::Status ExpressionCompiler::Primary() {
  Frame& frame = top();
  if (frame.state == 1) {  // brackets around a tuple
    RETURN_IF_ERROR(tokens_.Expect(TokenKind::kRightParen, "')'"));
    Pop();
    return absl::OkStatus();
  }
  switch (tokens_.current().kind) {
    case TokenKind::kName:
      RETURN_IF_ERROR(Name());
      break;
    case TokenKind::kString:
      RETURN_IF_ERROR(Strings());
      break;
    case TokenKind::kInteger:
      RETURN_IF_ERROR(Integer());
      break;
    case TokenKind::kFloat:
      RETURN_IF_ERROR(Real());
      break;
    case TokenKind::kLeftParen:
      tokens_.Skip();
      frame.state = 1;
      Push({.rule = Rule::kTuple, .brackets = true});
      return absl::OkStatus();
    case TokenKind::kLeftBracket:
      tokens_.Skip();
      frame = {.rule = Rule::kList, .line = frame.line, .start = frame.start};
      return absl::OkStatus();
    case TokenKind::kLeftBrace:
      tokens_.Skip();
      frame = {.rule = Rule::kDict, .line = frame.line, .start = frame.start};
      return absl::OkStatus();
    default:
      return tokens_.Unexpected("an expression");
  }
  Pop();
  return absl::OkStatus();
}

absl::Status ExpressionCompiler::Name() {
  const std::string_view name = tokens_.text();
  const uint32_t line = tokens_.line();
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    const bool flag = name == "true" || name == "True";
    code_.Emit(Op::kConstant, line, code_.Constant(Value::Boolean(flag)));
  } else if (name == "none" || name == "None") {
    code_.Emit(Op::kConstant, line, code_.Constant(Value::None()));
  } else if (name == "self" || name == "super" || name == "lipsum" || name == "varargs" ||
             name == "kwargs") {
    return NotKnownError(line, "'" + std::string(name) + "' is not known here");
  } else {
    code_.Emit(Op::kLoad, line, code_.Name(name));
  }
  tokens_.Skip();
  return absl::OkStatus();
}

absl::Status ExpressionCompiler::Strings() {
  const uint32_t line = tokens_.line();
  std::string all;
  while (tokens_.Is(TokenKind::kString)) {
    const auto part = Unquote(tokens_.text());
    if (!part.ok()) {
      const std::string sentence(part.status().message());
      return absl::IsUnimplemented(part.status()) ? NotKnownError(tokens_.line(), sentence)
                                                  : SyntaxError(tokens_.line(), sentence);
    }
    all += *part;
    tokens_.Skip();
  }
  code_.Emit(Op::kConstant, line, code_.TextConstant(std::move(all)));
  return absl::OkStatus();
}

absl::Status ExpressionCompiler::Integer() {
  const std::string_view digits = tokens_.text();
  int64_t number = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), number).ec != std::errc()) {
    return NotKnownError(tokens_.line(), "integers of over 64 bits are not known here");
  }
  code_.Emit(Op::kConstant, tokens_.line(), code_.Constant(Value::Integer(number)));
  tokens_.Skip();
  return absl::OkStatus();
}

absl::Status ExpressionCompiler::Real() {
  const std::string_view digits = tokens_.text();
  double number = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), number).ec != std::errc()) {
    return NotKnownError(tokens_.line(), "a number that float64 does not have");
  }
  code_.Emit(Op::kConstant, tokens_.line(), code_.Constant(Value::Real(number)));
  tokens_.Skip();
  return absl::OkStatus();
}

}  // namespace eta::jinja
