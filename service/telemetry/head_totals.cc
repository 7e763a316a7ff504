#include "service/telemetry/head_totals.h"

#include <limits>
#include <utility>

namespace eta {
namespace {

// Contiguous 32-bit numbers: the compiler makes vector instructions of it.
void AddRow(const int32_t* __restrict counts, uint32_t* __restrict sums, int32_t heads) {
  for (int32_t head = 0; head < heads; ++head) sums[head] += static_cast<uint32_t>(counts[head]);
}

size_t SizeOf(int32_t layers, int32_t heads) {
  return static_cast<size_t>(layers) * static_cast<size_t>(heads);
}

}  // namespace

void HeadTotals::Sums::Flush() {
  for (size_t i = 0; i < recent.size(); ++i) older[i] += std::exchange(recent[i], 0);
}

HeadTotals::HeadTotals(const HeadShape& shape)
    : shape_(shape),
      attended_(SizeOf(shape.num_layers, shape.num_query_heads)),
      read_(SizeOf(shape.num_layers, shape.num_kv_heads)) {}

bool HeadTotals::Takes(int32_t kv_len) {
  if (recent_tokens_ + kv_len > std::numeric_limits<uint32_t>::max()) return false;
  recent_tokens_ += kv_len;
  return true;
}

// Layer by layer, so that the counts are read in the order in which they lie.
void HeadTotals::Add(const StepReport& step, std::span<const Row> rows) {
  while (!rows.empty()) {
    size_t count = 0;
    while (count < rows.size() && rows[count].totals->Takes(rows[count].report->kv_len)) ++count;
    if (count == 0) {
      HeadTotals& full = *rows.front().totals;
      full.attended_.Flush();
      full.read_.Flush();
      full.older_tokens_ += std::exchange(full.recent_tokens_, 0);
      continue;
    }
    const auto [num_layers, query_heads, kv_heads] = rows.front().totals->shape_;
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      for (const Row& row : rows.first(count)) {
        const int64_t at = layer * step.num_rows + row.report->row;
        AddRow(step.tokens_attended + at * query_heads,
               row.totals->attended_.recent.data() + layer * query_heads, query_heads);
        AddRow(step.tokens_read + at * kv_heads, row.totals->read_.recent.data() + layer * kv_heads,
               kv_heads);
      }
    }
    rows = rows.subspan(count);
  }
}

void HeadTotals::Add(const HeadTotals& other) {
  const auto add = [](const Sums& from, Sums& to) {
    for (size_t i = 0; i < to.older.size(); ++i) to.older[i] += from.older[i] + from.recent[i];
  };
  add(other.attended_, attended_);
  add(other.read_, read_);
  older_tokens_ += other.older_tokens_ + other.recent_tokens_;
}

void HeadTotals::AddTo(std::vector<LayerTotals>& layers) const {
  layers.resize(static_cast<size_t>(shape_.num_layers));
  const auto add = [](const Sums& from, size_t layer, int32_t heads, std::vector<int64_t>& to) {
    to.resize(static_cast<size_t>(heads));
    for (size_t head = 0; head < to.size(); ++head) {
      const size_t at = layer * to.size() + head;
      to[head] += from.older[at] + from.recent[at];
    }
  };
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    add(attended_, layer, shape_.num_query_heads, layers[layer].keys_attended);
    add(read_, layer, shape_.num_kv_heads, layers[layer].keys_read);
    layers[layer].keys_eligible += older_tokens_ + recent_tokens_;
  }
}

}  // namespace eta
