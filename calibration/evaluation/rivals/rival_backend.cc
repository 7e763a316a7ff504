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
  memories_.clear();
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
  if (sample_ == nullptr && !rival_) return;
  const KeptParts parts = Needs();
  const auto [layer, added] = layers_.try_emplace(params.kv.tiles, params.geometry);
  layer->second.Keep(batch_, params, *this, parts);
}

const KeptLayer* RivalBackend::Kept(const KvLayerView& kv) const {
  const auto found = layers_.find(kv.tiles);
  return found == layers_.end() ? nullptr : &found->second;
}

// All rows of the step if a rival chooses for them, or if it only watches them; else none.
std::vector<RivalBackend::ChosenRow> RivalBackend::Rows(bool chosen) const {
  std::vector<ChosenRow> rows;
  for (const SequenceRows& sequence : batch_.sequences) {
    const bool decode = sequence.kind == RowKind::kDecode && !sequence.attention.admit_all;
    if (decode != chosen) return {};
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      rows.push_back({sequence, sequence.row_begin + i, sequence.position + i + 1});
    }
  }
  return rows;
}

RivalHead RivalBackend::HeadOf(const SelectBlocksParams& params, const ChosenRow& row,
                               int32_t query_head, const RowBlocks& blocks) const {
  const AttentionOptions& options = row.sequence.attention;
  return {.layer = params.layer,
          .query_head = query_head,
          .q = QueryOf(params, row.index, query_head),
          .softmax_scale = params.softmax_scale,
          .threshold = params.thresholds.row(row.index)[query_head] - options.offset,
          .options = options,
          .blocks = blocks};
}

void RivalBackend::Choose(const SelectBlocksParams& params, const KeptLayer& layer,
                          const ChosenRow& row, int32_t kv_head,
                          std::vector<RivalMemory>* memories) const {
  const int32_t b = params.geometry.block_size;
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  const AttentionOptions& options = row.sequence.attention;
  const int32_t full = row.num_keys / b;
  const int32_t tail = row.num_keys - full * b;
  const RowBlocks blocks = {layer, row.sequence.block_table, kv_head, row.num_keys};
  std::vector<uint8_t> admitted(static_cast<size_t>(full));
  std::vector<uint32_t> heads(static_cast<size_t>(full));
  for (int32_t g = 0; g < group; ++g) {
    const int32_t h = kv_head * group + g;
    for (int32_t j = 0; j < full; ++j) {
      admitted[static_cast<size_t>(j)] = AlwaysRead(options, j, full) ? 1 : 0;
    }
    const RivalHead head = HeadOf(params, row, h, blocks);
    if (memories != nullptr) {
      rival_->AdmitAndRemember(head, admitted, (*memories)[static_cast<size_t>(h)]);
    } else {
      rival_->Admit(head, admitted);
    }
    int32_t count = 0;
    for (size_t j = 0; j < admitted.size(); ++j) {
      if (admitted[j] == 0) continue;
      heads[j] |= uint32_t{1} << g;
      ++count;
    }
    params.counts.tokens_attended[int64_t{row.index} * params.num_query_heads + h] =
        count * b + tail;
  }
  const int64_t list = int64_t{row.index} * params.geometry.num_kv_heads + kv_head;
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

void RivalBackend::Watch(const SelectBlocksParams& params, const KeptLayer& layer,
                         const ChosenRow& row, int32_t kv_head,
                         std::vector<RivalMemory>& memories) const {
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  const RowBlocks blocks = {layer, row.sequence.block_table, kv_head, row.num_keys};
  for (int32_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    rival_->Watch(HeadOf(params, row, h, blocks), memories[static_cast<size_t>(h)]);
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

void RivalBackend::Spread(size_t count, const std::function<void(size_t)>& work) const {
  std::atomic<size_t> next = 0;
  const auto take = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> helpers;
  const auto wanted = std::min(static_cast<size_t>(num_threads_), count);
  for (size_t i = 1; i < wanted; ++i) helpers.emplace_back(take);
  take();
}

void RivalBackend::ChooseAll(const SelectBlocksParams& params, const KeptLayer& layer,
                             const std::vector<ChosenRow>& rows) {
  Spread(rows.size(), [&](size_t i) {
    for (int32_t kv_head = 0; kv_head < params.geometry.num_kv_heads; ++kv_head) {
      Choose(params, layer, rows[i], kv_head, nullptr);
    }
  });
}

// A head's rows in their order; heads beside one another.
void RivalBackend::RememberAll(const SelectBlocksParams& params, const KeptLayer& layer,
                               const std::vector<ChosenRow>& rows, bool chosen) {
  std::vector<RivalMemory>& memories = memories_[params.kv.tiles];
  if (rows.front().num_keys == 1) memories.clear();
  memories.resize(static_cast<size_t>(params.num_query_heads));
  Spread(static_cast<size_t>(params.geometry.num_kv_heads), [&](size_t kv_head) {
    for (const ChosenRow& row : rows) {
      if (chosen) {
        Choose(params, layer, row, static_cast<int32_t>(kv_head), &memories);
      } else {
        Watch(params, layer, row, static_cast<int32_t>(kv_head), memories);
      }
    }
  });
}

void RivalBackend::SelectBlocks(const SelectBlocksParams& params) {
  const KeptLayer* layer = Kept(params.kv);
  if (sample_ != nullptr && layer != nullptr) SampleBounds(params, *layer);
  if (!rival_ || layer == nullptr) return ForwardingBackend::SelectBlocks(params);
  if (rival_->remembers()) {
    const std::vector<ChosenRow> watched = Rows(/*chosen=*/false);
    if (!watched.empty()) RememberAll(params, *layer, watched, /*chosen=*/false);
  }
  const std::vector<ChosenRow> rows = Rows(/*chosen=*/true);
  if (rows.empty()) return ForwardingBackend::SelectBlocks(params);
  if (rival_->remembers()) {
    RememberAll(params, *layer, rows, /*chosen=*/true);
  } else {
    ChooseAll(params, *layer, rows);
  }
}

}  // namespace eta
