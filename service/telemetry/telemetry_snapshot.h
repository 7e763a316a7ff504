// What the server has counted since it started, at one moment: the one source of Stats and of the
// Prometheus page, so that both say the same.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/request/request.h"

namespace eta {

// Attention of decode rows (eta-semantics.md, "What is counted"). Sums of integers are exact.
struct AttentionTotals {
  int64_t decode_rows = 0;
  int64_t keys_attended = 0;  // admitted keys, summed over layers and query heads
  int64_t keys_eligible = 0;  // T, summed likewise: what full attention would have attended
  int64_t keys_read = 0;      // keys that attention read, summed over layers and KV heads
  int64_t keys_cached = 0;    // T, summed likewise
  double head_density = 0.0;  // summed over rows: divided by decode_rows it is the answers' mean
  double union_density = 0.0;
  int64_t kv_bytes_read = 0;
  int64_t kv_bytes_dense = 0;
  int64_t index_bytes_read = 0;
};

// One layer of them: what its heads did.
struct LayerTotals {
  std::vector<int64_t> keys_attended;  // [HQ]
  std::vector<int64_t> keys_read;      // [HKV]
  int64_t keys_eligible = 0;           // T summed over rows: of each head
};

// Requests of one mode and one profile name (empty: none), over all tenants and versions, or only
// those of one tenant where a snapshot was asked for it.
struct AttentionSeries {
  AttentionMode mode = AttentionMode::kFull;
  std::string profile;
  AttentionTotals totals;
  std::vector<LayerTotals> layers;  // [L], if asked for
};

struct LatencyQuantiles {
  int64_t count = 0;
  std::chrono::nanoseconds p50{0};
  std::chrono::nanoseconds p95{0};
  std::chrono::nanoseconds p99{0};
};

enum class Latency : uint8_t { kFirstToken, kInterToken, kQueue, kRequest };
inline constexpr int kLatencies = 4;
enum class Window : uint8_t { kOneMinute, kTenMinutes };
inline constexpr int kWindows = 2;

struct CallCount {
  std::string method;
  std::string code;  // gRPC's name of the status: "OK", "CANCELLED", ...
  int64_t calls = 0;
};

struct ReasonCount {
  std::string method;
  std::string reason;  // ErrorReason; empty: none was told
  int64_t calls = 0;
};

struct TenantTotals {
  std::string tenant;
  std::vector<CallCount> calls;
  std::vector<ReasonCount> reasons;  // of those that did not end OK, by method, then reason
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  AttentionTotals attention;
};

struct TelemetrySnapshot {
  Clock::time_point started;
  double steps_per_second = 0.0;   // over the last minute
  double tokens_per_second = 0.0;  // drawn, likewise
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  int64_t preemptions = 0;
  int64_t steps = 0;
  std::array<std::array<LatencyQuantiles, kWindows>, kLatencies> latencies;
  std::vector<AttentionSeries> attention;
  std::vector<TenantTotals> tenants;
};

struct SnapshotQuery {
  bool layers = false;
  std::string tenant;  // its figures only; empty: everybody's
};

}  // namespace eta
