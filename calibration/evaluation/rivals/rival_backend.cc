#include "calibration/evaluation/rivals/rival_backend.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "calibration/evaluation/rivals/host_rows.h"
#include "calibration/evaluation/rivals/key_attention.h"
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
  // The keys of the row that the head admits, [T].
  std::vector<uint8_t>& Keys(int32_t row, int32_t head) {
    return keys[static_cast<size_t>(row) * static_cast<size_t>(params.num_query_heads) +
                static_cast<size_t>(head)];
  }
  // Those that any head of the group admits.
  std::vector<uint8_t> GroupKeys(int32_t row, int32_t kv_head) {
    std::vector<uint8_t> all = Keys(row, kv_head * group());
    for (int32_t h = 1; h < group(); ++h) {
      std::ranges::transform(Keys(row, kv_head * group() + h), all, all.begin(), std::bit_or<>());
    }
    return all;
  }

  const SelectBlocksParams params;
  const KeptLayer& layer;
  HostRows q;                                   // [R, HQ * d]
  HostRows thresholds;                          // [R, HQ]
  std::vector<std::vector<uint8_t>> keys = {};  // [R * HQ], by key
};

RivalBackend::RivalBackend(std::shared_ptr<Backend> backend, int num_threads)
    : ForwardingBackend(std::move(backend)), workers_(std::max(1, num_threads)) {}

RivalBackend::~RivalBackend() = default;

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
    parts.values = parts.values || needs.values;
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
          .tempered = row.sequence.tempered,
          .options = options,
          .blocks = blocks};
}

// Several heads of a group may choose at a time.
void RivalBackend::ChooseFor(Selecting& selecting, const ChosenRow& row, int32_t query_head,
                             RivalMemory* memory) {
  const KvGeometry& geometry = selecting.params.geometry;
  const AttentionOptions& options = row.sequence.attention;
  const int32_t kv_head = query_head / selecting.group();
  const int32_t full = row.num_keys / geometry.block_size;
  const int32_t unit = rival_->by_key() ? 1 : geometry.block_size;
  std::vector<uint8_t> admitted(static_cast<size_t>(row.num_keys / unit));
  const auto block_of = [&](size_t i) {
    return static_cast<int32_t>(i) * unit / geometry.block_size;
  };
  for (size_t i = 0; i < admitted.size() && block_of(i) < full; ++i) {
    admitted[i] = IsAlwaysRead(options, block_of(i), full) ? 1 : 0;
  }
  const RowBlocks blocks = {selecting.layer, row.sequence.block_table, kv_head, row.num_keys};
  const RivalHead head = HeadOf(selecting, row, query_head, blocks);
  if (selecting.params.layer < rival_->dense_layers()) {
    std::ranges::fill(admitted, uint8_t{1});
  } else if (memory != nullptr) {
    rival_->AdmitAndRemember(head, admitted, *memory);
  } else {
    rival_->Admit(head, admitted);
  }
  const int64_t list = int64_t{row.index} * geometry.num_kv_heads + kv_head;
  uint32_t* heads = heads_.data() + list * selecting.params.selection.capacity;
  const uint32_t bit = uint32_t{1} << (query_head % selecting.group());
  int32_t listed = -1;
  for (size_t i = 0; i < admitted.size() && block_of(i) < full; ++i) {
    if (admitted[i] == 0 || block_of(i) == listed) continue;
    listed = block_of(i);
    std::atomic_ref(heads[listed]).fetch_or(bit, std::memory_order_relaxed);
  }
  if (rival_->by_key()) selecting.Keys(row.index, query_head) = std::move(admitted);
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
void RivalBackend::ChooseAll(Selecting& selecting, const std::vector<ChosenRow>& rows) {
  const SelectBlocksParams& params = selecting.params;
  if (rival_->by_key()) {
    selecting.keys.resize(static_cast<size_t>(batch_.num_rows()) *
                          static_cast<size_t>(params.num_query_heads));
  }
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
  auto selecting = std::make_unique<Selecting>(params, *layer, *this, batch_.num_rows());
  if (sample_ != nullptr) SampleBounds(*selecting);
  if (!watched.empty()) {
    for (const Rival* rival : watching) WatchAll(*rival, *selecting, watched);
  }
  if (chosen.empty()) return ForwardingBackend::SelectBlocks(params);
  ChooseAll(*selecting, chosen);
  ForwardingBackend::ListBlocks({params.q, heads_.data(), params.num_query_heads, params.geometry,
                                 params.selection, params.counts});
  if (!rival_->by_key()) return;
  CountKeys(*selecting, chosen);
  by_key_ = std::move(selecting);
}

// In the place of the counts of the blocks that are listed.
void RivalBackend::CountKeys(Selecting& selecting, const std::vector<ChosenRow>& rows) {
  const SelectBlocksParams& params = selecting.params;
  const auto note = [this](int32_t* counts, int64_t at, const std::vector<uint8_t>& keys) {
    const auto count = static_cast<int32_t>(std::ranges::count(keys, 1));
    if (counts != nullptr) counted_.emplace_back(counts + at, count);
  };
  for (const ChosenRow& row : rows) {
    for (int32_t h = 0; h < params.num_query_heads; ++h) {
      note(params.counts.tokens_attended, int64_t{row.index} * params.num_query_heads + h,
           selecting.Keys(row.index, h));
    }
    for (int32_t h = 0; h < params.geometry.num_kv_heads; ++h) {
      const std::vector<uint8_t> keys = selecting.GroupKeys(row.index, h);
      const int64_t at = int64_t{row.index} * params.geometry.num_kv_heads + h;
      note(params.counts.tokens_read, at, keys);
      note(params.counts.values_read, at, keys);
    }
  }
}

// The other backend attends to the blocks, and what it computed is written over.
void RivalBackend::DecodeAttention(const AttentionParams& params) {
  ForwardingBackend::DecodeAttention(params);
  const std::unique_ptr<Selecting> chosen = std::move(by_key_);
  if (chosen == nullptr) return;
  const KeyGate gate = {params.gate == Gate::kSilu, params.beta};
  const std::vector<ChosenRow> rows = Rows(/*chosen=*/true);
  const auto d = static_cast<int64_t>(params.geometry.head_dim);
  const auto element = static_cast<int64_t>(SizeOf(params.out.dtype));
  std::vector<std::byte> out(static_cast<size_t>(std::ssize(rows) * params.out.cols * element));
  workers_.Run(std::ssize(rows) * params.num_query_heads, [&](int64_t task, int) {
    const ChosenRow& row = rows[static_cast<size_t>(task / params.num_query_heads)];
    const auto query_head = static_cast<int32_t>(task % params.num_query_heads);
    const int32_t kv_head = query_head / chosen->group();
    const AttentionOptions& options = row.sequence.attention;
    const RowBlocks blocks = {chosen->layer, row.sequence.block_table, kv_head, row.num_keys};
    const std::vector<float> attended = AttendToKeys(
        HeadOf(*chosen, row, query_head, blocks), gate, gate.silu && options.uniform_floor,
        options.shared_reads ? chosen->GroupKeys(row.index, kv_head)
                             : chosen->Keys(row.index, query_head));
    for (int64_t i = 0; i < d; ++i) {
      StoreElement(params.out.dtype, out.data(), task * d + i, attended[static_cast<size_t>(i)]);
    }
  });
  // In one piece where rows follow one another.
  const int64_t rows_of_piece = params.out.stride == params.out.cols ? std::ssize(rows) : 1;
  const int64_t bytes = rows_of_piece * params.out.cols * element;
  for (int64_t i = 0; i < std::ssize(rows); i += rows_of_piece) {
    Upload(reinterpret_cast<std::byte*>(params.out.row(rows[static_cast<size_t>(i)].index)),
           out.data() + i * params.out.cols * element, static_cast<size_t>(bytes));
  }
}

absl::Status RivalBackend::Finish() {
  const absl::Status status = ForwardingBackend::Finish();
  for (const auto& [at, count] : std::exchange(counted_, {})) *at = count;
  return status;
}

}  // namespace eta
