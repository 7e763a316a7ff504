#include "tests/bench/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "hwy/aligned_allocator.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/machine_limits.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eta::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Twelve independent chains hide the latency of a multiply-add. Returns the number of FLOP.
double MultiplyAdds(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999f);
  const auto term = hn::Set(d, 0.001f);
  auto a0 = hn::Set(d, 0.0f), a1 = hn::Set(d, 0.1f), a2 = hn::Set(d, 0.2f), a3 = hn::Set(d, 0.3f);
  auto a4 = hn::Set(d, 0.4f), a5 = hn::Set(d, 0.5f), a6 = hn::Set(d, 0.6f), a7 = hn::Set(d, 0.7f);
  auto a8 = hn::Set(d, 0.8f), a9 = hn::Set(d, 0.9f), b0 = hn::Set(d, 1.0f), b1 = hn::Set(d, 1.1f);
  for (int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, factor, term);
    a1 = hn::MulAdd(a1, factor, term);
    a2 = hn::MulAdd(a2, factor, term);
    a3 = hn::MulAdd(a3, factor, term);
    a4 = hn::MulAdd(a4, factor, term);
    a5 = hn::MulAdd(a5, factor, term);
    a6 = hn::MulAdd(a6, factor, term);
    a7 = hn::MulAdd(a7, factor, term);
    a8 = hn::MulAdd(a8, factor, term);
    a9 = hn::MulAdd(a9, factor, term);
    b0 = hn::MulAdd(b0, factor, term);
    b1 = hn::MulAdd(b1, factor, term);
  }
  a0 =
      hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)));
  a0 = hn::Add(a0, hn::Add(hn::Add(a8, a9), hn::Add(b0, b1)));
  *sink = hn::GetLane(hn::SumOfLanes(d, a0));
  return static_cast<double>(rounds) * 12.0 * 2.0 * static_cast<double>(hn::Lanes(d));
}

float Read(const float* from, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (size_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Add(a, hn::Load(d, from + i));
    b = hn::Add(b, hn::Load(d, from + i + lanes));
    c = hn::Add(c, hn::Load(d, from + i + 2 * lanes));
    e = hn::Add(e, hn::Load(d, from + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::bench {

HWY_EXPORT(MultiplyAdds);
HWY_EXPORT(Read);

Timing Measure(double seconds, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  work();
  std::vector<double> times;
  const auto begin = Clock::now();
  const std::chrono::duration<double> budget(seconds);
  while (times.size() < 3 || Clock::now() - begin < budget) {
    const auto start = Clock::now();
    work();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

double PeakFlops(cpu::Workers& workers, int num_threads) {
  constexpr int64_t kRounds = 100'000;
  std::atomic<double> flop{0.0};
  const Timing timing = Measure(0.3, [&] {
    workers.Run(num_threads, [&](int64_t, int) {
      float sink = 0.0f;
      flop.store(HWY_DYNAMIC_DISPATCH(MultiplyAdds)(kRounds, &sink));
    });
  });
  return flop.load() * num_threads / timing.best;
}

double ReadBandwidth(cpu::Workers& workers, int num_threads, size_t bytes) {
  const size_t part = bytes / sizeof(float) / static_cast<size_t>(num_threads) / 64 * 64;
  const auto data = hwy::AllocateAligned<float>(part * static_cast<size_t>(num_threads));
  std::fill_n(data.get(), part * static_cast<size_t>(num_threads), 1.0f);
  std::atomic<float> sink{0.0f};
  // Reads in windows that are short enough to be read, at times, without losing the core to another
  // process.
  constexpr size_t kWindow = size_t{1} << 20;
  const size_t window = std::min(part, kWindow);
  size_t at = 0;
  const Timing timing = Measure(0.5, [&] {
    workers.Run(num_threads, [&](int64_t i, int) {
      const float* from = data.get() + static_cast<size_t>(i) * part + at;
      sink.store(HWY_DYNAMIC_DISPATCH(Read)(from, window));
    });
    at = at + 2 * window <= part ? at + window : 0;
  });
  return static_cast<double>(window * static_cast<size_t>(num_threads)) * sizeof(float) /
         timing.best;
}

}  // namespace eta::bench
#endif  // HWY_ONCE
