// lint: untrusted-input, fuzz-covered
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/checked.h"
#include "engine/base/status_macros.h"
#include "engine/chat/jinja/values/html.h"
#include "engine/chat/jinja/values/operators.h"
#include "engine/chat/jinja/values/percent_format.h"
#include "engine/chat/jinja/values/text_builder.h"

namespace eta::jinja {
namespace {

constexpr size_t kBlockBytes = 4096;  // of a text that is repeated

absl::Status TooLarge() {
  return absl::UnimplementedError("integers of over 64 bits are not known here");
}

absl::Status NoSuchOperator(std::string_view op, const Value& a, const Value& b) {
  return absl::InvalidArgumentError("unsupported operand types for " + std::string(op) + ": '" +
                                    std::string(a.TypeName()) + "' and '" +
                                    std::string(b.TypeName()) + "'");
}

absl::StatusOr<Value> Power(const Value& a, const Value& b) {
  if (!a.IsIntegral() || !b.IsIntegral() || b.integer() < 0) {
    if (a.real() == 0 && b.real() < 0) {
      return absl::InvalidArgumentError("0.0 cannot be raised to a negative power");
    }
    const double power = std::pow(a.real(), b.real());
    if (std::isnan(power) && !std::isnan(a.real()) && !std::isnan(b.real())) {
      return absl::UnimplementedError("complex numbers are not known here");
    }
    return Value::Real(power);
  }
  int64_t result = 1;
  int64_t base = a.integer();
  for (int64_t exponent = b.integer(); exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return TooLarge();
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return TooLarge();
  }
  return Value::Integer(result);
}

double FloorModulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (b < 0) != (rest < 0)) rest += b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

// Python's //: what is left when the rest is taken off, rounded to the nearest whole number.
double FloorQuotient(double a, double b) {
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
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
    return Value::Real(op == TokenKind::kMod ? FloorModulo(a.real(), b.real())
                                             : FloorQuotient(a.real(), b.real()));
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
    case TokenKind::kPow:
      return Power(a, b);
    default:
      return Divide(op, a, b);
  }
}

absl::StatusOr<Value> Add(Heap& heap, const Value& a, const Value& b) {
  if (a.IsText() && b.IsText()) {
    const bool safe = a.text().safe || b.text().safe;
    TextBuilder out(heap);
    for (const Value* part : {&a, &b}) {
      if (safe && !part->text().safe) {
        AppendHtml(part->text(), out);
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

// Of one writer: in blocks of several times.
void RepeatText(Heap& heap, const Text& text, uint64_t times, TextBuilder& out) {
  if (text.bytes.empty()) return;
  const bool own = text.control.size() == 1 && text.control[0] == ByteRange{0, text.bytes.size()};
  const bool mixed = !own && !text.control.empty();
  const uint64_t each = mixed ? 1 : std::max<uint64_t>(1, kBlockBytes / text.bytes.size());
  std::string block;
  if (!mixed) {
    for (uint64_t i = 0; i < std::min(each, times); ++i) block += text.bytes;
  }
  for (; times > 0 && !heap.exhausted(); times -= std::min(each, times)) {
    heap.Work(1);
    if (mixed) {
      out.Append(text);
    } else if (times >= each) {
      out.Append(block, own);
    } else {
      for (uint64_t i = 0; i < times; ++i) out.Append(text.bytes, own);
    }
  }
}

// A text or list over and over again.
absl::StatusOr<Value> Repeat(Heap& heap, const Value& value, int64_t count) {
  const auto times = static_cast<uint64_t>(std::max<int64_t>(count, 0));
  if (value.IsText()) {
    TextBuilder out(heap);
    RepeatText(heap, value.text(), times, out);
    Value repeated = out.Finish();
    repeated.As<Text>().safe = value.text().safe;
    return repeated;
  }
  const Sequence& sequence = value.sequence();
  const auto bytes = CheckedMul(times, sequence.items.size() + 1);
  if (!bytes || *bytes > (uint64_t{1} << 20)) {
    return absl::ResourceExhaustedError("a list of over a million items");
  }
  std::vector<Value> items;
  for (uint64_t i = 0; i < times; ++i) {
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return MakeSequence(heap, sequence.form, std::move(items));
}

bool Repeats(const Value& value) {
  return value.IsText() ||
         (value.IsSequence() && (value.sequence().form == Sequence::Form::kList ||
                                 value.sequence().form == Sequence::Form::kTuple));
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
    case TokenKind::kMod:
      return "%";
    default:
      return "**";
  }
}

}  // namespace

absl::StatusOr<Value> Binary(Heap& heap, TokenKind op, const Value& a, const Value& b) {
  if (op == TokenKind::kMod && a.IsText()) {
    if (a.text().safe) {
      return absl::UnimplementedError("'%' of a text that 'safe' made is not known here");
    }
    return PercentFormat(heap, a.text(), b);
  }
  for (const Value* value : {&a, &b}) {
    if (value->IsUndefined()) return absl::InvalidArgumentError(value->why());
  }
  if (a.IsNumber() && b.IsNumber()) return Number(op, a, b);
  if (op == TokenKind::kAdd) return Add(heap, a, b);
  if (op == TokenKind::kMul) {
    if (Repeats(a) && b.IsIntegral()) return Repeat(heap, a, b.integer());
    if (Repeats(b) && a.IsIntegral()) return Repeat(heap, b, a.integer());
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
