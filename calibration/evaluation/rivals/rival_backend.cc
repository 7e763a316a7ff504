#include "calibration/evaluation/rivals/rival_backend.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "calibration/evaluation/rivals/host_rows.h"
#include "kernels/block_bound.h"

namespace eta {
struct RivalBackend::Selecting {
  Selecting(const SelectBlocksParams& select, const KeptLayer& kept, Backend& backend,
            int64_t num_rows)
      : params(select),
        layer(kept),
        q(backend, select.q, num_rows),
        thresholds(backend, select.thresholds, num_rows) {}

  std::span<const float> Query(int32_t row, int32_t head) const {
    const auto d = static_cast<size_t>(params.geometry.head_dim);
    return q.row(row).subspan(static_cast<size_t>(head) * d, d);
  }
  int32_t group() const { return params.num_query_heads / params.geometry.num_kv_heads; }

  const SelectBlocksParams& params;
  const KeptLayer& layer;
  HostRows q;           // [R, HQ * d]
  HostRows thresholds;  // [R, HQ]
};

RivalBackend::RivalBackend(std::shared_ptr<Backend> backend, int num_threads)
    : ForwardingBackend(std::move(backend)), workers_(std::max(1, num_threads)) {}

void RivalBackend::Use(std::shared_ptr<const Rival> rival) {
  Prepare({rival});
  preparing_ = false;
  rival_ = std::move(rival);
}

void RivalBackend::Prepare(const std::vector<std::shared_ptr<const Rival>>& rivals,
                           int32_t stride) {
  prepared_.clear();
  for (const std::shared_ptr<const Rival>& rival : rivals) {
    if (rival && std::ranges::find(prepared_, rival) == prepared_.end()) prepared_.push_back(rival);
  }
  preparing_ = true;
  watch_stride_ = stride;
  rival_ = nullptr;
  layers_.clear();
  memories_.clear();
}

void RivalBackend::Choose(std::shared_ptr<const Rival> rival) {
  if (preparing_) watched_ = std::move(memories_);
  preparing_ = false;
  memories_ = watched_;
  rival_ = std::move(rival);
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
  KeptParts parts = {.records = sample_ != nullptr};
  for (const auto& rival : prepared_) {
    const KeptParts needs = rival->needs();
    parts.records = parts.records || needs.records;
    parts.keys = parts.keys || needs.keys;
    parts.boxes = parts.boxes || needs.boxes;
  }
  return parts;
}

void RivalBackend::AppendKv(const AppendKvParams& params) {
  ForwardingBackend::AppendKv(params);
  if (sample_ == nullptr && prepared_.empty()) return;
  const KeptParts parts = Needs();
  const auto [layer, added] = layers_.try_emplace(params.kv.tiles, params.geometry);
  layer->second.Keep(batch_, params, *this, parts, workers_);
}

const KeptLayer* RivalBackend::Kept(const KvLayerView& kv) const {
  const auto found = layers_.find(kv.tiles);
  return found == layers_.end() ? nullptr : &found->second;
}

// All rows of the step that a rival chooses for, or those that it watches.
std::vector<RivalBackend::ChosenRow> RivalBackend::Rows(bool chosen) const {
  std::vector<ChosenRow> rows;
  for (const SequenceRows& sequence : batch_.sequences) {
    const bool decode = sequence.kind == RowKind::kDecode && !sequence.attention.admit_all;
    if (decode != chosen) return {};
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      if (!chosen && (sequence.position + i) % watch_stride_ != 0) continue;
      rows.push_back({sequence, sequence.row_begin + i, sequence.position + i + 1});
    }
  }
  return rows;
}

RivalHead RivalBackend::HeadOf(const Selecting& selecting, const ChosenRow& row, int32_t query_head,
                               const RowBlocks& blocks) const {
  const AttentionOptions& options = row.sequence.attention;
  return {.layer = selecting.params.layer,
          .query_head = query_head,
          .q = selecting.Query(row.index, query_head),
          .softmax_scale = selecting.params.softmax_scale,
          .threshold =
              selecting.thresholds.row(row.index)[static_cast<size_t>(query_head)] - options.offset,
          .options = options,
          .blocks = blocks};
}

// Several heads of a group may choose at a time.
void RivalBackend::ChooseFor(const Selecting& selecting, const ChosenRow& row, int32_t query_head,
                             RivalMemory* memory) {
  const KvGeometry& geometry = selecting.params.geometry;
  const AttentionOptions& options = row.sequence.attention;
  const int32_t kv_head = query_head / selecting.group();
  const int32_t full = row.num_keys / geometry.block_size;
  std::vector<uint8_t> admitted(static_cast<size_t>(full));
  for (int32_t j = 0; j < full; ++j) {
    admitted[static_cast<size_t>(j)] = IsAlwaysRead(options, j, full) ? 1 : 0;
  }
  const RowBlocks blocks = {selecting.layer, row.sequence.block_table, kv_head, row.num_keys};
  const RivalHead head = HeadOf(selecting, row, query_head, blocks);
  if (memory != nullptr) {
    rival_->AdmitAndRemember(head, admitted, *memory);
  } else {
    rival_->Admit(head, admitted);
  }
  const int64_t list = int64_t{row.index} * geometry.num_kv_heads + kv_head;
  uint32_t* heads = heads_.data() + list * selecting.params.selection.capacity;
  const uint32_t bit = uint32_t{1} << (query_head % selecting.group());
  for (size_t j = 0; j < admitted.size(); ++j) {
    if (admitted[j] != 0) std::atomic_ref(heads[j]).fetch_or(bit, std::memory_order_relaxed);
  }
}

void RivalBackend::SampleBounds(const Selecting& selecting) {
  const SelectBlocksParams& params = selecting.params;
  std::vector<ChosenRow> rows;
  for (const SequenceRows& sequence : batch_.sequences) {
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int32_t position = sequence.position + i;
      if (position < sample_from_ || position % sample_stride_ != 0) continue;
      rows.push_back({sequence, sequence.row_begin + i, position + 1});
    }
  }
  const size_t before = sample_->size();
  sample_->resize(before + rows.size());
  workers_.Run(std::ssize(rows), [&](int64_t task, int) {
    const auto i = static_cast<size_t>(task);
    const ChosenRow& row = rows[i];
    SampledBounds& sampled = (*sample_)[before + i];
    sampled = {.layer = params.layer, .num_keys = row.num_keys, .bounds = {}};
    for (int32_t h = 0; h < params.num_query_heads; ++h) {
      const RowBlocks blocks = {selecting.layer, row.sequence.block_table, h / selecting.group(),
                                row.num_keys};
      std::vector<float>& bounds = sampled.bounds.emplace_back();
      for (int32_t j = 0; j < blocks.num_full(); ++j) {
        const BlockBound bound =
            BoundOf(blocks.record(j).View(), selecting.Query(row.index, h), params.softmax_scale);
        bounds.push_back(bound.At(row.sequence.attention.z));
      }
    }
  });
}

std::vector<RivalMemory>& RivalBackend::MemoriesOf(const Rival& rival, const Selecting& selecting,
                                                   const std::vector<ChosenRow>& rows) {
  std::vector<RivalMemory>& memories = memories_[{selecting.params.kv.tiles, &rival}];
  if (rows.front().num_keys == 1) memories.clear();
  memories.resize(static_cast<size_t>(selecting.params.num_query_heads));
  return memories;
}

// Rows of a prompt beside one another: what they leave is added up in their order.
void RivalBackend::WatchAll(const Rival& rival, const Selecting& selecting,
                            const std::vector<ChosenRow>& rows) {
  constexpr size_t kRows = 16;
  std::vector<RivalMemory>& memories = MemoriesOf(rival, selecting, rows);
  const size_t parts = (rows.size() + kRows - 1) / kRows;
  std::vector<RivalMemory> watched(memories.size() * parts);
  workers_.Run(std::ssize(watched), [&](int64_t task, int) {
    const auto i = static_cast<size_t>(task);
    const auto head = static_cast<int32_t>(i / parts);
    const size_t first = i % parts * kRows;
    const auto part = std::span(rows).subspan(first, std::min(kRows, rows.size() - first));
    std::vector<RowBlocks> blocks;
    for (const ChosenRow& row : part) {
      blocks.push_back(
          {selecting.layer, row.sequence.block_table, head / selecting.group(), row.num_keys});
    }
    std::vector<RivalHead> heads;
    for (size_t j = 0; j < part.size(); ++j) {
      heads.push_back(HeadOf(selecting, part[j], head, blocks[j]));
    }
    rival.Watch(heads, watched[i]);
  });
  for (size_t i = 0; i < watched.size(); ++i) rival.AddWatched(watched[i], memories[i / parts]);
}

// A head that remembers takes its rows in their order.
void RivalBackend::ChooseAll(const Selecting& selecting, const std::vector<ChosenRow>& rows) {
  const SelectBlocksParams& params = selecting.params;
  heads_.assign(static_cast<size_t>(int64_t{batch_.num_rows()} * params.geometry.num_kv_heads *
                                    params.selection.capacity),
                0);
  if (rival_->remembers()) {
    std::vector<RivalMemory>& memories = MemoriesOf(*rival_, selecting, rows);
    workers_.Run(std::ssize(memories), [&](int64_t head, int) {
      RivalMemory& memory = memories[static_cast<size_t>(head)];
      for (const ChosenRow& row : rows) {
        ChooseFor(selecting, row, static_cast<int32_t>(head), &memory);
      }
    });
  } else {
    workers_.Run(std::ssize(rows), [&](int64_t i, int) {
      for (int32_t head = 0; head < params.num_query_heads; ++head) {
        ChooseFor(selecting, rows[static_cast<size_t>(i)], head, nullptr);
      }
    });
  }
}

void RivalBackend::SelectBlocks(const SelectBlocksParams& params) {
  const KeptLayer* layer = Kept(params.kv);
  const std::vector<ChosenRow> chosen = rival_ ? Rows(/*chosen=*/true) : std::vector<ChosenRow>();
  std::vector<const Rival*> watching;
  for (const auto& rival : prepared_) {
    if (rival->remembers() && (preparing_ || rival == rival_)) watching.push_back(rival.get());
  }
  const std::vector<ChosenRow> watched =
      watching.empty() ? std::vector<ChosenRow>() : Rows(/*chosen=*/false);
  if (layer == nullptr || (sample_ == nullptr && chosen.empty() && watched.empty())) {
    return ForwardingBackend::SelectBlocks(params);
  }
  const Selecting selecting(params, *layer, *this, batch_.num_rows());
  if (sample_ != nullptr) SampleBounds(selecting);
  if (!watched.empty()) {
    for (const Rival* rival : watching) WatchAll(*rival, selecting, watched);
  }
  if (chosen.empty()) return ForwardingBackend::SelectBlocks(params);
  ChooseAll(selecting, chosen);
  ForwardingBackend::ListBlocks({params.q, heads_.data(), params.num_query_heads, params.geometry,
                                 params.selection, params.counts});
}

}  // namespace eta
