#include "engine/batching/estimates/prefill_throughput.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kLifetime{30};
constexpr double kNewest = 0.1;  // weight of the newest step

}  // namespace

milliseconds PrefillTime(int64_t tokens, double rate) {
  if (rate <= 0.0) return milliseconds(0);
  return milliseconds(static_cast<int64_t>(1000.0 * static_cast<double>(tokens) / rate));
}

void PrefillThroughput::Measure(int32_t rows, std::chrono::nanoseconds duration,
                                Clock::time_point at) {
  const double per_row = std::chrono::duration<double>(duration).count() / rows;
  // Times are averaged, not rates: a mean of rates would hide the slow steps behind the fast ones.
  rate_ = 1.0 / (rate_ == 0.0 ? per_row : (1.0 - kNewest) / rate_ + kNewest * per_row);
  measured_at_ = at;
}

milliseconds PrefillThroughput::Predict(int64_t tokens, Clock::time_point now) const {
  return now - measured_at_ > kLifetime ? milliseconds(0) : PrefillTime(tokens, rate_);
}

}  // namespace eta
