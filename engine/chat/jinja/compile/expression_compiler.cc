// lint: untrusted-input, fuzz-covered
#include "engine/chat/jinja/compile/expression_compiler.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/native.h"

namespace eta::jinja {
namespace {

constexpr size_t kMaxFrames = 1024;  // brackets nest some eighty deep
constexpr size_t kMaxConditions = 32;

// Levels of kBinary, from the loosest on.
constexpr uint8_t kOr = 0, kAnd = 1, kSum = 2, kProduct = 3;

bool IsOperatorOf(uint8_t level, TokenKind kind) {
  switch (level) {
    case kSum:
      return kind == TokenKind::kAdd || kind == TokenKind::kSub;
    case kProduct:
      return kind == TokenKind::kMul || kind == TokenKind::kDiv || kind == TokenKind::kFloorDiv ||
             kind == TokenKind::kMod;
    default:
      return false;
  }
}

}  // namespace

absl::Status ExpressionCompiler::Run(Frame first) {
  frames_.clear();
  Push(std::move(first));
  while (!frames_.empty()) {
    if (frames_.size() > kMaxFrames) {
      return SyntaxError(tokens_.line(), "an expression nests too deep");
    }
    RETURN_IF_ERROR(Step());
  }
  return absl::OkStatus();
}

void ExpressionCompiler::Push(Frame frame) {
  frame.start = code_.size();
  if (frame.line == 0) frame.line = tokens_.line();
  frames_.push_back(std::move(frame));
}

absl::Status ExpressionCompiler::Step() {
  switch (top().rule) {
    case Rule::kCondition:
      return Condition();
    case Rule::kBinary:
      return Binary();
    case Rule::kNot:
      return Not();
    case Rule::kCompare:
      return Compare();
    case Rule::kConcat:
      return Concat();
    case Rule::kUnary:
      return Unary();
    case Rule::kPrimary:
      return Primary();
    case Rule::kTuple:
      return TupleStep();
    case Rule::kList:
      return List();
    case Rule::kDict:
      return Dict();
    case Rule::kSubscript:
      return Subscript();
    case Rule::kArguments:
      return Arguments();
    case Rule::kFilters:
      return FiltersStep();
  }
  return absl::InternalError("no such rule");
}

// VALUE if CONDITION else OTHER. The value's code stands first and runs second.
absl::Status ExpressionCompiler::Condition() {
  Frame& frame = top();
  switch (frame.state) {
    case 0:
      frame.state = 1;
      Push({.rule = Rule::kBinary, .level = kOr});
      return absl::OkStatus();
    case 1:
      if (!tokens_.IsName("if")) {
        Pop();
        return absl::OkStatus();
      }
      if (++frame.count > kMaxConditions) {
        return SyntaxError(tokens_.line(), "an expression has too many conditions");
      }
      frame.line = tokens_.line();
      tokens_.Skip();
      frame.saved = code_.Cut(frame.start);
      frame.state = 2;
      Push({.rule = Rule::kBinary, .level = kOr});
      return absl::OkStatus();
    case 2: {
      const size_t if_not = code_.Emit(Op::kJumpIfFalse, frame.line);
      code_.Paste(frame.saved);
      const size_t to_end = code_.Emit(Op::kJump, frame.line);
      code_.AimHere(if_not);
      frame.saved.clear();
      if (tokens_.SkipIfName("else")) {
        frame.jumps = {to_end};
        frame.state = 3;
        Push({.rule = Rule::kCondition});
        return absl::OkStatus();
      }
      code_.Emit(Op::kUndefined, frame.line,
                 code_.TextConstant("the condition of line " + std::to_string(frame.line) +
                                    " is false and has no else"));
      code_.AimHere(to_end);
      frame.state = 1;
      return absl::OkStatus();
    }
    default:
      code_.AimHere(frame.jumps[0]);
      frame.state = 1;
      return absl::OkStatus();
  }
}

void ExpressionCompiler::PushLower(uint8_t level) {
  switch (level) {
    case kOr:
      return Push({.rule = Rule::kBinary, .level = kAnd});
    case kAnd:
      return Push({.rule = Rule::kNot});
    case kSum:
      return Push({.rule = Rule::kConcat});
    default:
      return Push({.rule = Rule::kUnary});
  }
}

absl::Status ExpressionCompiler::Binary() {
  Frame& frame = top();
  const uint8_t level = frame.level;
  if (frame.state == 2) {
    if (level <= kAnd) {
      code_.AimHere(frame.jumps.back());
    } else {
      code_.Emit(Op::kBinary, frame.line, static_cast<size_t>(frame.pending));
    }
    frame.state = 1;
  }
  if (frame.state == 0) {
    frame.state = 1;
    PushLower(level);
    return absl::OkStatus();
  }
  const bool is_word = level == kOr ? tokens_.IsName("or") : level == kAnd && tokens_.IsName("and");
  if (tokens_.Is(TokenKind::kPow)) {
    return NotKnownError(tokens_.line(), "operator '**' is not known here");
  }
  if (!is_word && !IsOperatorOf(level, tokens_.current().kind)) {
    Pop();
    return absl::OkStatus();
  }
  frame.line = tokens_.line();
  frame.pending = tokens_.current().kind;
  tokens_.Skip();
  if (is_word) {
    frame.jumps = {
        code_.Emit(level == kOr ? Op::kJumpIfTrueKeep : Op::kJumpIfFalseKeep, frame.line)};
  }
  frame.state = 2;
  PushLower(level);
  return absl::OkStatus();
}

absl::Status ExpressionCompiler::Not() {
  Frame& frame = top();
  if (frame.state == 1) {
    code_.Emit(Op::kNot, frame.line);
    Pop();
  } else if (tokens_.SkipIfName("not")) {
    frame.state = 1;
    Push({.rule = Rule::kNot});
  } else {
    frame = {.rule = Rule::kCompare, .line = frame.line, .start = frame.start};
  }
  return absl::OkStatus();
}

bool ExpressionCompiler::TakeCompareOperator(TokenKind& op) {
  switch (tokens_.current().kind) {
    case TokenKind::kEq:
    case TokenKind::kNe:
    case TokenKind::kLess:
    case TokenKind::kLessEq:
    case TokenKind::kGreater:
    case TokenKind::kGreaterEq:
      op = tokens_.current().kind;
      tokens_.Skip();
      return true;
    default:
      break;
  }
  if (tokens_.SkipIfName("in")) {
    op = TokenKind::kIn;
    return true;
  }
  if (tokens_.IsName("not") && tokens_.NextIsName("in")) {
    op = TokenKind::kNotIn;
    tokens_.Skip();
    tokens_.Skip();
    return true;
  }
  return false;
}

// A chain stops at its first False, which is then its value.
absl::Status ExpressionCompiler::Compare() {
  Frame& frame = top();
  if (frame.state == 0) {
    frame.state = 1;
    Push({.rule = Rule::kBinary, .level = kSum});
    return absl::OkStatus();
  }
  const TokenKind pending = frame.pending;
  const uint32_t line = frame.line;
  frame.line = tokens_.line();
  TokenKind op = TokenKind::kEnd;
  const bool more = TakeCompareOperator(op);
  if (frame.state == 2) {
    const size_t at =
        code_.Emit(more ? Op::kCompareChain : Op::kCompare, line, static_cast<size_t>(pending));
    if (more) frame.jumps.push_back(at);
  }
  if (!more) {
    for (const size_t jump : frame.jumps) code_.AimHere(jump);
    Pop();
    return absl::OkStatus();
  }
  frame.pending = op;
  frame.state = 2;
  Push({.rule = Rule::kBinary, .level = kSum});
  return absl::OkStatus();
}

absl::Status ExpressionCompiler::Concat() {
  Frame& frame = top();
  if (frame.state == 1) {
    ++frame.count;
    if (!tokens_.SkipIf(TokenKind::kTilde)) {
      if (frame.count > 1) code_.Emit(Op::kConcat, frame.line, frame.count);
      Pop();
      return absl::OkStatus();
    }
  }
  frame.state = 1;
  Push({.rule = Rule::kBinary, .level = kProduct});
  return absl::OkStatus();
}

absl::Status ExpressionCompiler::TupleStep() {
  Frame& frame = top();
  if (frame.state == 0) {
    const bool ends = tokens_.Is(TokenKind::kVariableEnd) || tokens_.Is(TokenKind::kBlockEnd) ||
                      tokens_.Is(TokenKind::kRightParen) || tokens_.IsName("recursive");
    if (!ends) {
      frame.state = 1;
      Push(frame.condition ? Frame{.rule = Rule::kCondition}
                           : Frame{.rule = Rule::kBinary, .level = kOr});
      return absl::OkStatus();
    }
  } else {
    ++frame.count;
    if (tokens_.SkipIf(TokenKind::kComma)) {
      frame.flag = true;
      frame.state = 0;
      return absl::OkStatus();
    }
  }
  if (frame.count == 0 && !frame.brackets) return tokens_.Unexpected("an expression");
  // A comma makes a tuple; so do brackets with nothing in them.
  if (frame.count == 0 || frame.flag) code_.Emit(Op::kMakeTuple, frame.line, frame.count);
  Pop();
  return absl::OkStatus();
}

absl::Status ExpressionCompiler::List() {
  Frame& frame = top();
  if (frame.state == 1) {
    ++frame.count;
    if (!tokens_.Is(TokenKind::kRightBracket)) {
      RETURN_IF_ERROR(tokens_.Expect(TokenKind::kComma, "',' or ']'"));
    }
  }
  if (tokens_.SkipIf(TokenKind::kRightBracket)) {
    code_.Emit(Op::kMakeList, frame.line, frame.count);
    Pop();
    return absl::OkStatus();
  }
  frame.state = 1;
  Push({.rule = Rule::kCondition});
  return absl::OkStatus();
}

absl::Status ExpressionCompiler::Dict() {
  Frame& frame = top();
  if (frame.state == 1) {  // a key is there
    RETURN_IF_ERROR(tokens_.Expect(TokenKind::kColon, "':'"));
    frame.state = 2;
    Push({.rule = Rule::kCondition});
    return absl::OkStatus();
  }
  if (frame.state == 2) {
    ++frame.count;
    if (!tokens_.Is(TokenKind::kRightBrace)) {
      RETURN_IF_ERROR(tokens_.Expect(TokenKind::kComma, "',' or '}'"));
    }
  }
  if (tokens_.SkipIf(TokenKind::kRightBrace)) {
    code_.Emit(Op::kMakeDict, frame.line, frame.count);
    Pop();
    return absl::OkStatus();
  }
  frame.state = 1;
  Push({.rule = Rule::kCondition});
  return absl::OkStatus();
}

// What stands in the brackets after a value: an item, or up to three parts of a slice.
absl::Status ExpressionCompiler::Subscript() {
  Frame& frame = top();
  const auto none = [&] { code_.Emit(Op::kConstant, frame.line, code_.Constant(Value::None())); };
  const auto at_end = [&] {
    return tokens_.Is(TokenKind::kRightBracket) || tokens_.Is(TokenKind::kComma);
  };
  while (true) {
    if (frame.state == 0) {  // start
      frame.state = 1;
      if (!tokens_.Is(TokenKind::kColon)) {
        Push({.rule = Rule::kCondition});
        return absl::OkStatus();
      }
      none();
    } else if (frame.state == 1) {  // the start is there, or it is an item
      if (!tokens_.SkipIf(TokenKind::kColon)) {
        frame.state = 4;
        continue;
      }
      frame.flag = true;
      frame.state = 2;
      if (!tokens_.Is(TokenKind::kColon) && !at_end()) {
        Push({.rule = Rule::kCondition});
        return absl::OkStatus();
      }
      none();
    } else if (frame.state == 2) {  // the stop is there
      frame.state = 4;
      if (tokens_.SkipIf(TokenKind::kColon) && !at_end()) {
        Push({.rule = Rule::kCondition});
        return absl::OkStatus();
      }
      none();
    } else {
      if (tokens_.Is(TokenKind::kComma)) {
        return NotKnownError(tokens_.line(), "tuples as subscripts are not known here");
      }
      RETURN_IF_ERROR(tokens_.Expect(TokenKind::kRightBracket, "']'"));
      code_.Emit(frame.flag ? Op::kSlice : Op::kItem, frame.line);
      Pop();
      return absl::OkStatus();
    }
  }
}

absl::Status ExpressionCompiler::Arguments() {
  Frame& frame = top();
  if (frame.state == 1) {
    if (!tokens_.Is(TokenKind::kRightParen)) {
      RETURN_IF_ERROR(tokens_.Expect(TokenKind::kComma, "',' or ')'"));
    }
  }
  if (tokens_.SkipIf(TokenKind::kRightParen)) {
    shape_ = {frame.count, std::move(frame.names)};
    Pop();
    return absl::OkStatus();
  }
  if (tokens_.Is(TokenKind::kMul) || tokens_.Is(TokenKind::kPow)) {
    return NotKnownError(tokens_.line(), "arguments unpacked by a star are not known here");
  }
  if (tokens_.Is(TokenKind::kName) && tokens_.next().kind == TokenKind::kAssign) {
    for (const std::string& name : frame.names) {
      if (name == tokens_.text()) {
        return SyntaxError(tokens_.line(), "argument '" + name + "' is there twice");
      }
    }
    frame.names.emplace_back(tokens_.text());
    tokens_.Skip();
    tokens_.Skip();
  } else if (!frame.names.empty()) {
    return SyntaxError(tokens_.line(), "an argument without a name follows one with a name");
  } else {
    ++frame.count;
  }
  frame.state = 1;
  Push({.rule = Rule::kCondition});
  return absl::OkStatus();
}

// Filters of a block or of `set`: | NAME(ARGUMENTS) ...
absl::Status ExpressionCompiler::FiltersStep() {
  Frame& frame = top();
  if (frame.state == 1) {  // its arguments are there
    EmitFilter();
    frame.state = 0;
  }
  if (!std::exchange(frame.condition, false) && !tokens_.SkipIf(TokenKind::kPipe)) {
    Pop();
    return absl::OkStatus();
  }
  frame.state = 1;
  return BeginFilter();
}

// A filter's name, then its arguments; the frame on top keeps which filter it is.
absl::Status ExpressionCompiler::BeginFilter() {
  Frame& frame = top();
  frame.line = tokens_.line();
  if (!tokens_.Is(TokenKind::kName)) return tokens_.Unexpected("the name of a filter");
  const auto filter = FindFilter(tokens_.text());
  frame.count = filter.value_or(0);
  frame.unknown = filter ? "" : "filter '" + std::string(tokens_.text()) + "' is not known here";
  tokens_.Skip();
  shape_ = {};
  if (tokens_.SkipIf(TokenKind::kLeftParen)) Push({.rule = Rule::kArguments});
  return absl::OkStatus();
}

void ExpressionCompiler::EmitFilter() {
  const Frame& frame = top();
  const size_t call = code_.Call(std::exchange(shape_, {}));
  if (frame.unknown.empty()) {
    code_.Emit(Op::kFilter, frame.line, frame.count, call);
  } else {
    code_.Emit(Op::kRefuse, frame.line, code_.TextConstant(frame.unknown));
  }
}

}  // namespace eta::jinja
