// lint: untrusted-input, fuzz-covered
#include "engine/format/schema/number_range.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"

namespace eta::schema {
namespace {

constexpr double kMaxExact = 9007199254740992.0;  // 2^53
// The library writes six digits behind the point. Up to here no two such numbers are one float64.
constexpr double kMaxExclusive = 1e9;
constexpr double kStep = 1e-6;

absl::Status None(const SchemaModel& model, const Bound& bound) {
  return RefuseSchema(model.text, bound.at, "no number lies between these bounds");
}

absl::StatusOr<int64_t> IntegerEnd(const SchemaModel& model, const Bound& bound) {
  const auto refuse = [&] {
    return RefuseSchema(model.text, bound.at, "a bound of integers must fit 64 bits");
  };
  const std::optional<int64_t> whole = bound.number.Int64();
  if (!whole) {
    const double value = bound.number.value;
    if (bound.number.whole_text || !(std::abs(value) <= kMaxExact)) return refuse();
    return static_cast<int64_t>(bound.lower ? std::ceil(value) : std::floor(value));
  }
  if (!bound.exclusive) return *whole;
  int64_t inside = 0;
  if (__builtin_add_overflow(*whole, bound.lower ? 1 : -1, &inside)) return refuse();
  return inside;
}

absl::StatusOr<NumberEnd> EndOf(const SchemaModel& model, const Bound& bound) {
  const double value = bound.number.value;
  const double most = bound.exclusive ? kMaxExclusive : kMaxExact;
  if (!(std::abs(value) <= most)) {
    return RefuseSchema(model.text, bound.at,
                        absl::StrFormat("a bound of numbers must be within +-%.0f", most));
  }
  std::string text = absl::StrFormat("%.6f", value);
  double written = 0;
  if (!absl::SimpleAtod(text, &written) || written != value) {
    return RefuseSchema(model.text, bound.at,
                        "a bound of numbers has at most 6 digits behind the point");
  }
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return NumberEnd{.value = value, .exclusive = bound.exclusive, .text = std::move(text)};
}

bool Narrower(const NumberEnd& a, const std::optional<NumberEnd>& b, bool lower) {
  if (!b) return true;
  if (a.value == b->value) return a.exclusive;
  return lower ? a.value > b->value : a.value < b->value;
}

}  // namespace

absl::StatusOr<IntegerRange> IntegerRangeOf(const SchemaModel& model, const SchemaNode& node) {
  IntegerRange range;
  for (const Bound& bound : node.bounds) {
    ASSIGN_OR_RETURN(const int64_t end, IntegerEnd(model, bound));
    if (bound.lower) {
      range.low = std::max(range.low.value_or(end), end);
    } else {
      range.high = std::min(range.high.value_or(end), end);
    }
    if (range.low && range.high && *range.low > *range.high) return None(model, bound);
  }
  return range;
}

absl::StatusOr<NumberRange> NumberRangeOf(const SchemaModel& model, const SchemaNode& node) {
  NumberRange range;
  for (const Bound& bound : node.bounds) {
    ASSIGN_OR_RETURN(NumberEnd end, EndOf(model, bound));
    std::optional<NumberEnd>& old = bound.lower ? range.low : range.high;
    if (Narrower(end, old, bound.lower)) old = std::move(end);
    if (!range.low || !range.high) continue;
    const double width = range.high->value - range.low->value;
    const int out = (range.low->exclusive ? 1 : 0) + (range.high->exclusive ? 1 : 0);
    // Between two that are both left out another one must be left.
    const double least = out == 0 ? 0 : out == 1 ? kStep / 2 : kStep + kStep / 2;
    const bool some = width >= least;
    if (!some) return None(model, bound);
  }
  return range;
}

}  // namespace eta::schema
