// lint: untrusted-input, fuzz-covered
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/values/operators.h"
#include "engine/chat/jinja/values/text_builder.h"

namespace eta::jinja {
namespace {

absl::Status TooLarge() {
  return absl::UnimplementedError("integers of over 64 bits are not known here");
}

absl::Status NoSuchOperator(std::string_view op, const Value& a, const Value& b) {
  return absl::InvalidArgumentError("unsupported operand types for " + std::string(op) + ": '" +
                                    std::string(a.TypeName()) + "' and '" +
                                    std::string(b.TypeName()) + "'");
}

absl::StatusOr<Value> Divide(TokenKind op, const Value& a, const Value& b) {
  if (b.real() == 0) return absl::InvalidArgumentError("division by zero");
  if (op == TokenKind::kDiv) {
    if (a.IsIntegral() && b.IsIntegral()) {
      return Value::Real(static_cast<double>(static_cast<long double>(a.integer()) /
                                             static_cast<long double>(b.integer())));
    }
    return Value::Real(a.real() / b.real());
  }
  if (!a.IsIntegral() || !b.IsIntegral()) {
    return absl::UnimplementedError("'//' and '%' of a float are not known here");
  }
  const int64_t left = a.integer();
  const int64_t right = b.integer();
  if (right == -1) {
    if (op == TokenKind::kMod) return Value::Integer(0);
    if (left == std::numeric_limits<int64_t>::min()) return TooLarge();
    return Value::Integer(-left);
  }
  const int64_t rest = left % right;
  const bool below = rest != 0 && (rest < 0) != (right < 0);
  if (op == TokenKind::kMod) return Value::Integer(below ? rest + right : rest);
  return Value::Integer(left / right - (below ? 1 : 0));
}

absl::StatusOr<Value> Number(TokenKind op, const Value& a, const Value& b) {
  const bool integral = a.IsIntegral() && b.IsIntegral();
  int64_t result = 0;
  switch (op) {
    case TokenKind::kAdd:
      if (!integral) return Value::Real(a.real() + b.real());
      if (__builtin_add_overflow(a.integer(), b.integer(), &result)) return TooLarge();
      return Value::Integer(result);
    case TokenKind::kSub:
      if (!integral) return Value::Real(a.real() - b.real());
      if (__builtin_sub_overflow(a.integer(), b.integer(), &result)) return TooLarge();
      return Value::Integer(result);
    case TokenKind::kMul:
      // cannot wrap: of float64
      if (!integral) return Value::Real(a.real() * b.real());
      if (__builtin_mul_overflow(a.integer(), b.integer(), &result)) return TooLarge();
      return Value::Integer(result);
    default:
      return Divide(op, a, b);
  }
}

// As MarkupSafe escapes it; empty for what stays.
std::string Html(char32_t c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '\'':
      return "&#39;";
    case '"':
      return "&#34;";
    default:
      return "";
  }
}

absl::StatusOr<Value> Add(Heap& heap, const Value& a, const Value& b) {
  if (a.IsText() && b.IsText()) {
    const bool safe = a.text().safe || b.text().safe;
    TextBuilder out(heap);
    for (const Value* part : {&a, &b}) {
      if (safe && !part->text().safe) {
        AppendEscaped(part->text(), Html, out);
      } else {
        out.Append(part->text());
      }
    }
    Value sum = out.Finish();
    sum.As<Text>().safe = safe;
    return sum;
  }
  if (a.IsSequence() && b.IsSequence() && a.sequence().form == b.sequence().form &&
      (a.sequence().form == Sequence::Form::kList || a.sequence().form == Sequence::Form::kTuple)) {
    std::vector<Value> items = a.sequence().items;
    items.insert(items.end(), b.sequence().items.begin(), b.sequence().items.end());
    return MakeSequence(heap, a.sequence().form, std::move(items));
  }
  return NoSuchOperator("+", a, b);
}

// Over and over again: what is put together doubles, so that few steps make a long text.
Value Repeat(Heap& heap, const Value& text, int64_t times) {
  TextBuilder out(heap);
  Value block = text;
  for (int64_t left = times; left > 0 && !heap.exhausted(); left >>= 1) {
    if ((left & 1) != 0) out.Append(block.text());
    TextBuilder twice(heap);
    for (int i = 0; i < 2 && left > 1; ++i) twice.Append(block.text());
    block = twice.Finish();
  }
  Value repeated = out.Finish();
  repeated.As<Text>().safe = text.text().safe;
  return repeated;
}

std::string_view OperatorText(TokenKind op) {
  switch (op) {
    case TokenKind::kAdd:
      return "+";
    case TokenKind::kSub:
      return "-";
    case TokenKind::kMul:
      return "*";
    case TokenKind::kDiv:
      return "/";
    case TokenKind::kFloorDiv:
      return "//";
    default:
      return "%";
  }
}

}  // namespace

absl::StatusOr<Value> Binary(Heap& heap, TokenKind op, const Value& a, const Value& b) {
  if (op == TokenKind::kMod && a.IsText()) {
    return absl::UnimplementedError("'%' of a str is not known here");
  }
  for (const Value* value : {&a, &b}) {
    if (value->IsUndefined()) return absl::InvalidArgumentError(value->why());
  }
  if (a.IsNumber() && b.IsNumber()) return Number(op, a, b);
  if (op == TokenKind::kAdd) return Add(heap, a, b);
  if (op == TokenKind::kMul) {
    if (a.IsText() && b.IsIntegral()) return Repeat(heap, a, b.integer());
    if (b.IsText() && a.IsIntegral()) return Repeat(heap, b, a.integer());
    if (a.IsSequence() || b.IsSequence()) {
      return absl::UnimplementedError("'*' of a list is not known here");
    }
  }
  return NoSuchOperator(OperatorText(op), a, b);
}

absl::StatusOr<Value> Negate(const Value& value, bool negative) {
  if (value.IsUndefined()) return absl::InvalidArgumentError(value.why());
  if (value.Is(Kind::kReal)) return Value::Real(negative ? -value.real() : value.real());
  if (!value.IsIntegral()) {
    return absl::InvalidArgumentError("bad operand type for a sign: '" +
                                      std::string(value.TypeName()) + "'");
  }
  if (!negative) return Value::Integer(value.integer());
  if (value.integer() == std::numeric_limits<int64_t>::min()) return TooLarge();
  return Value::Integer(-value.integer());
}

}  // namespace eta::jinja
