#include "calibration/solvers/head_z.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "calibration/solvers/target_error.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr int32_t kMaxHeadsOfLayers = 1 << 14;  // of all layers together: 512 MiB

void Accumulate(HeadKeys& to, const HeadKeys& from) {
  for (size_t k = 0; k < to.needed.size(); ++k) to.needed[k] += from.needed[k];
  to.unconditional += from.unconditional;
  to.beyond += from.beyond;
  to.unreachable += from.unreachable;
}

absl::StatusOr<HeadZ> Smallest(const HeadKeys& keys, double recall,
                               std::map<std::string, std::string> where) {
  if (!(recall > 0.0 && recall <= 1.0)) return InvalidField("z_recall", "must be in (0, 1]");
  HeadZ chosen = {.keys = keys.total()};
  if (chosen.keys == 0) return chosen;
  int64_t admitted = keys.unconditional;
  for (int32_t k = 0; k < kZBins; ++k) {
    admitted += keys.needed[static_cast<size_t>(k)];
    chosen.z = ZOfBin(k);
    chosen.recall = static_cast<double>(admitted) / static_cast<double>(chosen.keys);
    if (chosen.recall >= recall) return chosen;
  }
  where["beyond"] = absl::StrCat(keys.beyond);
  where["unreachable"] = absl::StrCat(keys.unreachable);
  return TargetUnreachable("z_recall", recall, chosen.recall, std::move(where));
}

}  // namespace

int64_t HeadKeys::total() const {
  return std::accumulate(needed.begin(), needed.end(), unconditional + beyond + unreachable);
}

absl::StatusOr<HeadZStatistics> HeadZStatistics::Create(int32_t num_layers,
                                                        int32_t num_query_heads) {
  if (num_layers < 1 || num_query_heads < 1 ||
      int64_t{num_layers} * num_query_heads > kMaxHeadsOfLayers) {
    return InvalidField(
        "heads", absl::StrCat(num_layers, " layers of ", num_query_heads,
                              ": must be at least 1, and ", kMaxHeadsOfLayers, " heads at most"));
  }
  return HeadZStatistics(num_layers, num_query_heads);
}

HeadZStatistics::HeadZStatistics(int32_t num_layers, int32_t num_query_heads)
    : num_layers_(num_layers),
      num_query_heads_(num_query_heads),
      heads_(static_cast<size_t>(num_layers) * static_cast<size_t>(num_query_heads)) {}

size_t HeadZStatistics::Index(int32_t layer, int32_t head) const {
  return static_cast<size_t>(layer) * static_cast<size_t>(num_query_heads_) +
         static_cast<size_t>(head);
}

void HeadZStatistics::AddBlock(int32_t layer, int32_t head, const BlockBound& bound,
                               float threshold, int64_t keys) {
  if (keys == 0) return;
  HeadKeys& counts = heads_[Index(layer, head)];
  const int32_t bin = NeededZBin(bound, threshold);
  if (bin == kZUnreachable) {
    counts.unreachable += keys;
  } else if (bin == kZBeyond) {
    counts.beyond += keys;
  } else {
    counts.needed[static_cast<size_t>(bin)] += keys;
  }
}

void HeadZStatistics::AddUnconditional(int32_t layer, int32_t head, int64_t keys) {
  heads_[Index(layer, head)].unconditional += keys;
}

absl::Status HeadZStatistics::Add(int32_t layer, int32_t head, const HeadKeys& increment) {
  if (layer < 0 || layer >= num_layers_ || head < 0 || head >= num_query_heads_) {
    return InvalidField("head", absl::StrCat("layer ", layer, ", head ", head, " of ", num_layers_,
                                             " layers of ", num_query_heads_, " heads"));
  }
  const bool negative = increment.unconditional < 0 || increment.beyond < 0 ||
                        increment.unreachable < 0 ||
                        std::any_of(increment.needed.begin(), increment.needed.end(),
                                    [](int64_t n) { return n < 0; });
  if (negative) {
    return InvalidField(absl::StrCat("keys[", layer, "][", head, "]"), "must not be negative");
  }
  Accumulate(heads_[Index(layer, head)], increment);
  return absl::OkStatus();
}

absl::Status HeadZStatistics::Merge(const HeadZStatistics& other) {
  if (other.num_layers_ != num_layers_ || other.num_query_heads_ != num_query_heads_) {
    return InvalidField("statistics", "must have the same layers and heads");
  }
  for (size_t i = 0; i < heads_.size(); ++i) Accumulate(heads_[i], other.heads_[i]);
  return absl::OkStatus();
}

HeadKeys HeadZStatistics::Pooled() const {
  HeadKeys pooled;
  for (const HeadKeys& keys : heads_) Accumulate(pooled, keys);
  return pooled;
}

absl::StatusOr<HeadZ> SmallestZ(const HeadKeys& keys, double recall) {
  return Smallest(keys, recall, {});
}

absl::StatusOr<std::vector<HeadZ>> SolveHeadZ(const HeadZStatistics& statistics, double recall) {
  std::vector<HeadZ> solved;
  for (int32_t layer = 0; layer < statistics.num_layers(); ++layer) {
    for (int32_t head = 0; head < statistics.num_query_heads(); ++head) {
      ASSIGN_OR_RETURN(const HeadZ z,
                       Smallest(statistics.head(layer, head), recall,
                                {{"layer", absl::StrCat(layer)}, {"head", absl::StrCat(head)}}));
      solved.push_back(z);
    }
  }
  return solved;
}

}  // namespace eta
