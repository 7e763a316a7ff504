#include "calibration/evaluation/rivals/rival_backend.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "calibration/evaluation/rivals/block_estimate.h"

namespace eta {
namespace {

std::span<const float> QueryOf(const SelectBlocksParams& params, int32_t row, int32_t head) {
  const int32_t d = params.geometry.head_dim;
  return {params.q.row(row) + int64_t{head} * d, static_cast<size_t>(d)};
}

}  // namespace

RivalBackend::RivalBackend(std::shared_ptr<Backend> backend, int num_threads)
    : ForwardingBackend(std::move(backend)), num_threads_(std::max(1, num_threads)) {}

bool RivalBackend::Serves(const Backend& backend) {
  return !backend.defers() && backend.name() != "cuda";
}

void RivalBackend::Use(std::shared_ptr<const Rival> rival) {
  rival_ = std::move(rival);
  layers_.clear();
}

void RivalBackend::CollectBounds(std::vector<SampledBounds>* sample, int32_t first_position,
                                 int32_t stride) {
  Use(nullptr);
  sample_ = sample;
  sample_from_ = first_position;
  sample_stride_ = stride;
}

void RivalBackend::Plan(const BatchView& batch) {
  batch_ = batch;
  ForwardingBackend::Plan(batch);
}

KeptParts RivalBackend::Needs() const {
  if (sample_ != nullptr) return {.records = true};
  return rival_ ? rival_->needs() : KeptParts();
}

void RivalBackend::AppendKv(const AppendKvParams& params) {
  ForwardingBackend::AppendKv(params);
  const KeptParts parts = Needs();
  if (!parts.records && !parts.keys && !parts.boxes) return;
  const auto [layer, added] = layers_.try_emplace(params.kv.tiles, params.geometry);
  layer->second.Keep(batch_, params, *this, parts);
}

const KeptLayer* RivalBackend::Kept(const KvLayerView& kv) const {
  const auto found = layers_.find(kv.tiles);
  return found == layers_.end() ? nullptr : &found->second;
}

// The rows that a rival chooses for: all of the step, or none if it holds others too.
std::vector<RivalBackend::ChosenRow> RivalBackend::Rows() const {
  std::vector<ChosenRow> rows;
  for (const SequenceRows& sequence : batch_.sequences) {
    if (sequence.kind != RowKind::kDecode || sequence.attention.admit_all) return {};
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      rows.push_back({sequence, sequence.row_begin + i, sequence.position + i + 1});
    }
  }
  return rows;
}

void RivalBackend::Choose(const SelectBlocksParams& params, const KeptLayer& layer,
                          const ChosenRow& row) const {
  const int32_t b = params.geometry.block_size;
  const int32_t kv_heads = params.geometry.num_kv_heads;
  const int32_t group = params.num_query_heads / kv_heads;
  const AttentionOptions& options = row.sequence.attention;
  const int32_t full = row.num_keys / b;
  const int32_t tail = row.num_keys - full * b;
  std::vector<uint8_t> admitted(static_cast<size_t>(full));
  for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
    const RowBlocks blocks = {layer, row.sequence.block_table, kv_head, row.num_keys};
    std::vector<uint32_t> heads(static_cast<size_t>(full));
    for (int32_t g = 0; g < group; ++g) {
      const int32_t h = kv_head * group + g;
      for (int32_t j = 0; j < full; ++j) {
        admitted[static_cast<size_t>(j)] = AlwaysRead(options, j, full) ? 1 : 0;
      }
      rival_->Admit(
          {params.layer, h, QueryOf(params, row.index, h), params.softmax_scale, options, blocks},
          admitted);
      int32_t count = 0;
      for (size_t j = 0; j < admitted.size(); ++j) {
        if (admitted[j] == 0) continue;
        heads[j] |= uint32_t{1} << g;
        ++count;
      }
      params.counts.tokens_attended[int64_t{row.index} * params.num_query_heads + h] =
          count * b + tail;
    }
    const int64_t list = int64_t{row.index} * kv_heads + kv_head;
    uint32_t* listed = params.selection.blocks + list * params.selection.capacity;
    uint32_t* masks = params.selection.heads + list * params.selection.capacity;
    const auto all = static_cast<uint32_t>((uint64_t{1} << group) - 1);
    int32_t count = 0;
    for (size_t j = 0; j < heads.size(); ++j) {
      if (heads[j] == 0) continue;
      listed[count] = static_cast<uint32_t>(j);
      masks[count] = options.shared_reads ? all : heads[j];
      ++count;
    }
    params.selection.counts[list] = count;
    params.counts.tokens_read[list] = count * b + tail;
    if (params.counts.values_read != nullptr) params.counts.values_read[list] = count * b + tail;
  }
}

void RivalBackend::SampleBounds(const SelectBlocksParams& params, const KeptLayer& layer) {
  for (const SequenceRows& sequence : batch_.sequences) {
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int32_t position = sequence.position + i;
      if (position < sample_from_ || position % sample_stride_ != 0) continue;
      SampledBounds row = {.layer = params.layer, .num_keys = position + 1, .bounds = {}};
      for (int32_t h = 0; h < params.num_query_heads; ++h) {
        const int32_t kv_head = h / (params.num_query_heads / params.geometry.num_kv_heads);
        const RowBlocks blocks = {layer, sequence.block_table, kv_head, row.num_keys};
        std::vector<float>& bounds = row.bounds.emplace_back();
        for (int32_t j = 0; j < blocks.num_full(); ++j) {
          bounds.push_back(ScoreBound(params.geometry, blocks.record(j),
                                      QueryOf(params, sequence.row_begin + i, h),
                                      params.softmax_scale, sequence.attention.z));
        }
      }
      sample_->push_back(std::move(row));
    }
  }
}

void RivalBackend::SelectBlocks(const SelectBlocksParams& params) {
  const KeptLayer* layer = Kept(params.kv);
  if (sample_ != nullptr && layer != nullptr) SampleBounds(params, *layer);
  const std::vector<ChosenRow> rows =
      rival_ && layer != nullptr ? Rows() : std::vector<ChosenRow>();
  if (rows.empty()) {
    ForwardingBackend::SelectBlocks(params);
    return;
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < rows.size(); i = next++) Choose(params, *layer, rows[i]);
  };
  std::vector<std::jthread> helpers;
  const auto wanted = std::min(static_cast<size_t>(num_threads_), rows.size());
  for (size_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
  work();
}

}  // namespace eta
