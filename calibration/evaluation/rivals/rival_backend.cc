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
  // Those that any head of the group admits, once they were joined.
  std::vector<uint8_t>& GroupKeys(int32_t row, int32_t kv_head) {
    return group_keys[static_cast<size_t>(row) * static_cast<size_t>(params.geometry.num_kv_heads) +
                      static_cast<size_t>(kv_head)];
  }
  void JoinKeys(int32_t row, int32_t kv_head) {
    std::vector<uint8_t>& all = GroupKeys(row, kv_head);
    all = Keys(row, kv_head * group());
    for (int32_t h = 1; h < group(); ++h) {
      std::ranges::transform(Keys(row, kv_head * group() + h), all, all.begin(), std::bit_or<>());
    }
  }

  const SelectBlocksParams params;
  const KeptLayer& layer;
  HostRows q;                                         // [R, HQ * d]
  HostRows thresholds;                                // [R, HQ]
  std::vector<std::vector<uint8_t>> keys = {};        // [R * HQ], by key
  std::vector<std::vector<uint8_t>> group_keys = {};  // [R * HKV], by key
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
  if (prepared_.empty()) layers_.clear();
  memories_.clear();
}

void RivalBackend::Choose(std::shared_ptr<const Rival> rival) {
  if (preparing_) watched_ = std::move(memories_);
  preparing_ = false;
  rival_ = std::move(rival);
  memories_.clear();
  if (rival_ == nullptr || !rival_->remembers()) return;
  for (const auto& [of, memories] : watched_) {
    if (of.second == &WatcherOf(*rival_)) memories_[of] = memories;
  }
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
    if (!preparing_ && rival != rival_) continue;
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
  if (layer->second.geometry() != params.geometry) layer->second = KeptLayer(params.geometry);
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
                             std::span<const float> seen, RivalMemory* memory) {
  const KvGeometry& geometry = selecting.params.geometry;
  const AttentionOptions& options = row.sequence.attention;
  const int32_t kv_head = query_head / selecting.group();
  const int32_t full = row.num_keys / geometry.block_size;
  const auto units = static_cast<size_t>(rival_->by_key() ? geometry.block_size : 1);
  std::vector<uint8_t> admitted(static_cast<size_t>(rival_->by_key() ? row.num_keys : full));
  const auto of_block = [&](int32_t block) {
    return std::span(admitted).subspan(static_cast<size_t>(block) * units, units);
  };
  for (int32_t j = 0; j < full; ++j) {
    if (IsAlwaysRead(options, j, full)) std::ranges::fill(of_block(j), uint8_t{1});
  }
  const RowBlocks blocks = {selecting.layer, row.sequence.table(selecting.params.kv.table), kv_head,
                            row.num_keys};
  RivalHead head = HeadOf(selecting, row, query_head, blocks);
  head.seen = seen;
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
  for (int32_t j = 0; j < full; ++j) {
    if (std::ranges::find(of_block(j), 1) == of_block(j).end()) continue;
    std::atomic_ref(heads[j]).fetch_or(bit, std::memory_order_relaxed);
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
      const RowBlocks blocks = {selecting.layer, row.sequence.table(selecting.params.kv.table),
                                h / selecting.group(), row.num_keys};
      std::vector<float>& bounds = sampled.bounds.emplace_back();
      for (int32_t j = 0; j < blocks.num_full(); ++j) {
        const BlockBound bound =
            BoundOf(blocks.record(j).View(), selecting.Query(row.index, h), params.softmax_scale);
        bounds.push_back(bound.At(row.sequence.attention.z));
      }
    }
  });
}

// The first of those that watch alike: one memory serves them all.
const Rival& RivalBackend::WatcherOf(const Rival& rival) const {
  for (const auto& other : prepared_) {
    if (other->remembers() && other->WatchesLike(rival)) return *other;
  }
  return rival;
}

std::vector<RivalMemory>& RivalBackend::MemoriesOf(const Rival& rival, const Selecting& selecting,
                                                   const std::vector<ChosenRow>& rows) {
  std::vector<RivalMemory>& memories = memories_[{selecting.params.kv.tiles, &WatcherOf(rival)}];
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
      blocks.push_back({selecting.layer, row.sequence.table(selecting.params.kv.table),
                        head / selecting.group(), row.num_keys});
    }
    std::vector<RivalHead> heads;
    for (size_t j = 0; j < part.size(); ++j) {
      heads.push_back(HeadOf(selecting, part[j], head, blocks[j]));
    }
    rival.Watch(heads, watched[i]);
  });
  workers_.Run(std::ssize(memories), [&](int64_t task, int) {
    const auto head = static_cast<size_t>(task);
    for (size_t i = head * parts; i < (head + 1) * parts; ++i) {
      rival.AddWatched(watched[i], memories[head]);
    }
  });
}

// A head that remembers takes its rows in their order. It looks at some rows ahead, all heads and
// rows beside one another: that takes most of the time.
void RivalBackend::ChooseInOrder(Selecting& selecting, const std::vector<ChosenRow>& rows) {
  constexpr size_t kRows =
      32;  // what is seen of all rows of a long sequence would take much memory
  std::vector<RivalMemory>& memories = MemoriesOf(*rival_, selecting, rows);
  const bool dense = selecting.params.layer < rival_->dense_layers();
  std::vector<std::vector<float>> seen(dense ? 0 : kRows * memories.size());
  for (size_t first = 0; first < rows.size(); first += kRows) {
    const auto part = std::span(rows).subspan(first, std::min(kRows, rows.size() - first));
    workers_.Run(dense ? 0 : std::ssize(part) * std::ssize(memories), [&](int64_t task, int) {
      const auto i = static_cast<size_t>(task);
      const auto query_head = static_cast<int32_t>(i / part.size());
      const ChosenRow& row = part[i % part.size()];
      const RowBlocks blocks = {selecting.layer, row.sequence.table(selecting.params.kv.table),
                                query_head / selecting.group(), row.num_keys};
      seen[i].resize(static_cast<size_t>(row.num_keys));
      rival_->Look(HeadOf(selecting, row, query_head, blocks), seen[i]);
    });
    workers_.Run(std::ssize(memories), [&](int64_t head, int) {
      const auto h = static_cast<size_t>(head);
      for (size_t i = 0; i < part.size(); ++i) {
        ChooseFor(selecting, part[i], static_cast<int32_t>(head),
                  dense ? std::span<const float>() : seen[h * part.size() + i], &memories[h]);
      }
    });
  }
}

void RivalBackend::ChooseAll(Selecting& selecting, const std::vector<ChosenRow>& rows) {
  const SelectBlocksParams& params = selecting.params;
  if (rival_->by_key()) {
    selecting.keys.resize(static_cast<size_t>(batch_.num_rows()) *
                          static_cast<size_t>(params.num_query_heads));
  }
  heads_.assign(static_cast<size_t>(int64_t{batch_.num_rows()} * params.geometry.num_kv_heads *
                                    params.selection.capacity),
                0);
  if (rival_->remembers()) return ChooseInOrder(selecting, rows);
  workers_.Run(std::ssize(rows), [&](int64_t i, int) {
    for (int32_t head = 0; head < params.num_query_heads; ++head) {
      ChooseFor(selecting, rows[static_cast<size_t>(i)], head, {}, nullptr);
    }
  });
}

void RivalBackend::SelectBlocks(const SelectBlocksParams& params) {
  const KeptLayer* layer = Kept(params.kv);
  const std::vector<ChosenRow> chosen = rival_ ? Rows(/*chosen=*/true) : std::vector<ChosenRow>();
  std::vector<const Rival*> watching;
  for (const auto& rival : prepared_) {
    if (!rival->remembers() || (!preparing_ && rival != rival_)) continue;
    if (!preparing_ || &WatcherOf(*rival) == rival.get()) watching.push_back(rival.get());
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
                                 params.selection, params.counts, params.kv.table});
  if (!rival_->by_key()) return;
  CountKeys(*selecting, chosen);
  by_key_ = std::move(selecting);
}

// In the place of the counts of the blocks that are listed.
void RivalBackend::CountKeys(Selecting& selecting, const std::vector<ChosenRow>& rows) {
  const SelectBlocksParams& params = selecting.params;
  const int32_t kv_heads = params.geometry.num_kv_heads;
  const int64_t group = selecting.group();
  const auto count = [](const std::vector<uint8_t>& keys) {
    return static_cast<int32_t>(std::ranges::count(keys, 1));
  };
  selecting.group_keys.resize(static_cast<size_t>(batch_.num_rows()) *
                              static_cast<size_t>(kv_heads));
  std::vector<int32_t> attended(rows.size() * static_cast<size_t>(params.num_query_heads));
  std::vector<int32_t> read(rows.size() * static_cast<size_t>(kv_heads));
  workers_.Run(std::ssize(read), [&](int64_t task, int) {
    const int32_t row = rows[static_cast<size_t>(task / kv_heads)].index;
    const auto kv_head = static_cast<int32_t>(task % kv_heads);
    selecting.JoinKeys(row, kv_head);
    read[static_cast<size_t>(task)] = count(selecting.GroupKeys(row, kv_head));
    for (int64_t i = task * group; i < (task + 1) * group; ++i) {
      attended[static_cast<size_t>(i)] =
          count(selecting.Keys(row, static_cast<int32_t>(i % params.num_query_heads)));
    }
  });
  const auto note = [&](int32_t* counts, const std::vector<int32_t>& of_rows) {
    if (counts == nullptr) return;
    const auto width = static_cast<int64_t>(of_rows.size() / rows.size());
    for (int64_t i = 0; i < std::ssize(of_rows); ++i) {
      const int64_t row = rows[static_cast<size_t>(i / width)].index;
      counted_.emplace_back(counts + row * width + i % width, of_rows[static_cast<size_t>(i)]);
    }
  };
  note(params.counts.tokens_attended, attended);
  note(params.counts.tokens_read, read);
  note(params.counts.values_read, read);
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
    const RowBlocks blocks = {chosen->layer, row.sequence.table(chosen->params.kv.table), kv_head,
                              row.num_keys};
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
