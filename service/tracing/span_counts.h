// What became of the spans of calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace eta {

// Why spans were lost.
enum class SpanLoss : uint8_t {
  kQueueFull,   // as many calls waited as may
  kUnanswered,  // the collector was away, or too busy, at every try
  kRefused,     // the collector did not want them
  kShutdown,    // they waited when the server ended
};
inline constexpr int kSpanLosses = 4;

constexpr std::string_view Name(SpanLoss loss) {
  constexpr std::string_view kNames[kSpanLosses] = {"queue_full", "unanswered", "refused",
                                                    "shutdown"};
  return kNames[static_cast<size_t>(loss)];
}

struct SpanCounts {
  int64_t sent = 0;  // that the collector took
  std::array<int64_t, kSpanLosses> lost{};

  int64_t& Of(SpanLoss loss) { return lost[static_cast<size_t>(loss)]; }
  int64_t Of(SpanLoss loss) const { return lost[static_cast<size_t>(loss)]; }
};

}  // namespace eta
