#include "tests/testing/kernels/attention_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <sstream>

#include "kernels/params/calibration.h"
#include "kernels/params/layer.h"
#include "kernels/params/selection.h"

namespace eta::testing {
namespace {

constexpr int32_t kLayer = 1;  // one of two layers, since frozen thresholds are addressed by layer

constexpr uint64_t kUnsetWord = 0x5A5A5A5A5A5A5A5Au;

// The blocks of a row and KV head that `masks` [HQ, words] of the row have.
std::vector<SelectedBlock> BlocksOfMasks(const AttentionCase& made, int32_t kv_head,
                                         std::span<const uint64_t> masks, int64_t words) {
  std::vector<SelectedBlock> blocks;
  for (int64_t j = 0; j < words * 64; ++j) {
    uint32_t heads = 0;
    for (int64_t g = 0; g < made.group(); ++g) {
      const int64_t word = (kv_head * made.group() + g) * words + j / 64;
      if ((masks[static_cast<size_t>(word)] >> (j % 64) & 1) != 0) heads |= uint32_t{1} << g;
    }
    if (heads != 0) blocks.emplace_back(static_cast<uint32_t>(j), heads);
  }
  return blocks;
}

// Puts what rows of sparse prefill selected, by the masks [R + 1, HQ, words], where that of decode
// rows stands.
void TakePrefill(const AttentionCase& made, const std::vector<uint64_t>& masks, int64_t words,
                 AttentionResult& result) {
  const int32_t b = made.geometry.block_size;
  const auto kv_heads = static_cast<size_t>(made.geometry.num_kv_heads);
  const auto row_words = static_cast<size_t>(made.num_query_heads * words);
  size_t row = 0;
  for (const SequenceCase& sequence : made.sequences) {
    for (size_t h = 0; sequence.sparse_prefill() && h < kv_heads; ++h) {
      std::vector<bool> reads;    // tokens of the tile
      size_t tile = 0;            // where the tile's count stands
      std::vector<int32_t> want;  // what the sequence's rows should have counted
      for (int32_t i = 0; i < sequence.num_rows; ++i) {
        const size_t list = (row + static_cast<size_t>(i)) * kv_heads + h;
        const int32_t keys = sequence.position + i + 1;
        if (i == 0 || (keys - 1) % kPrefillTileRows == 0) {
          reads.assign(static_cast<size_t>(sequence.num_keys()), false);
          tile = static_cast<size_t>(i);
        }
        result.selection[list] = BlocksOfMasks(
            made, static_cast<int32_t>(h),
            std::span(masks).subspan((row + static_cast<size_t>(i)) * row_words, row_words), words);
        const int32_t tail = keys / b * b;
        std::fill(reads.begin() + tail, reads.begin() + keys, true);
        for (const auto& [block, mask] : result.selection[list]) {
          EXPECT_LT(block, static_cast<uint32_t>(keys / b)) << "row " << row << " + " << i;
          if (block >= static_cast<uint32_t>(keys / b)) return;
          std::fill_n(reads.begin() + static_cast<int64_t>(block) * b, b, true);
        }
        want.push_back(0);
        want[tile] = static_cast<int32_t>(std::ranges::count(reads, true));
      }
      for (int32_t i = 0; i < sequence.num_rows; ++i) {
        const size_t list = (row + static_cast<size_t>(i)) * kv_heads + h;
        EXPECT_EQ(result.tokens_read[list], want[static_cast<size_t>(i)])
            << "tile of row " << row << " + " << i << ", KV head " << h;
        EXPECT_EQ(result.values_read[list], result.tokens_read[list]);
        const auto full = static_cast<int32_t>(result.selection[list].size()) * b;
        result.tokens_read[list] = full + (sequence.position + i + 1) % b;
        result.values_read[list] = result.tokens_read[list];
      }
    }
    row += static_cast<size_t>(sequence.num_rows);
  }
  EXPECT_TRUE(std::ranges::all_of(std::span(masks).last(row_words), [](uint64_t word) {
    return word == kUnsetWord;
  })) << "behind the masks";
}

}  // namespace

HostTensor DriftingKeys(Random& random, int64_t rows, int64_t cols, int32_t block_size) {
  HostTensor keys = Normal(random, rows, cols, 0.7f);
  HostTensor drift;
  for (int64_t t = 0; t < rows; ++t) {
    if (t % block_size == 0) drift = Normal(random, 1, cols, 0.8f);
    for (int64_t i = 0; i < cols; ++i) keys.row(t)[i] += drift.data[static_cast<size_t>(i)];
  }
  return keys;
}

float AttentionCase::softmax_scale() const {
  return 1.0f / std::sqrt(static_cast<float>(geometry.head_dim));
}

std::string AttentionCase::Describe() const {
  std::ostringstream text;
  text << "seed " << seed << ", d " << geometry.head_dim << ", b " << geometry.block_size
       << ", sub-block " << geometry.sub_block << ", " << Name(geometry.dtype) << ", index "
       << Name(geometry.index_dtype) << (geometry.index == IndexKind::kOutlier ? " outlier" : "")
       << ", heads " << num_query_heads << "/" << geometry.num_kv_heads
       << (gate == Gate::kNone ? ", no gate" : ", gated");
  if (window > 0) text << ", window " << window;
  if (!sinks.empty()) text << ", learned sinks";
  if (table > 0) text << ", table " << table;
  for (const SequenceCase& sequence : sequences) {
    text << "\n  " << (sequence.kind == RowKind::kDecode ? "decode" : "prefill") << " at "
         << sequence.position << " + " << sequence.num_rows << ", pinned "
         << sequence.attention.pinned_blocks << ", chunk " << sequence.attention.rescue_chunk
         << ", sinks " << sequence.attention.sink_blocks << ", z " << sequence.attention.z
         << ", offset " << sequence.attention.offset
         << (sequence.attention.uniform_floor ? ", floor" : "")
         << (sequence.attention.admit_all ? ", all" : "")
         << (sequence.attention.shared_reads ? ", shared" : "")
         << (sequence.attention.confirm ? ", confirmed" : "")
         << (sequence.sparse_prefill() ? ", sparse" : "")
         << (sequence.tempered.empty() ? "" : ", tempers")
         << (sequence.thresholds.empty() ? ", predicted" : "")
         << (sequence.head_z.empty() ? "" : ", z per head")
         << (sequence.calibrate ? ", calibrates" : "");
    if (sequence.attention.relative) text << ", relative " << sequence.attention.relative_c;
    if (sequence.parent >= 0) {
      text << ", shares " << sequence.shared_blocks << " blocks with " << sequence.parent;
    }
  }
  return text.str();
}

double Bound(const AttentionCase& attention_case, const BlockRecord& record, const float* q,
             float z) {
  double mean = 0.0;
  double variance = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < record.mu.size(); ++i) {
    const double x = q[i];
    const double sigma = record.sigma[i];
    mean += x * record.mu[i];
    variance += x * x * sigma * sigma;
    norm += x * x;
  }
  const double scale = attention_case.softmax_scale();
  if (!record.outlier.empty()) {
    double outlier = 0.0;
    double size = 0.0;
    for (size_t i = 0; i < record.mu.size(); ++i) {
      outlier += static_cast<double>(q[i]) * record.outlier[i];
      size += std::abs(q[i]);
    }
    return scale * std::max(mean + record.step / 2.0 * size + z * std::sqrt(variance),
                            outlier + record.outlier_step / 2.0 * size);
  }
  const double length = std::sqrt(norm);
  return scale * std::min(mean + length * record.mu_error + z * std::sqrt(variance),
                          length * record.max_norm);
}

AttentionStep::AttentionStep(Device& device, const AttentionCase& attention_case)
    : device_(device), case_(attention_case) {
  Random random(case_.seed);
  const KvLayout layout = *device_->Layout(case_.geometry);
  int32_t num_blocks = 3;
  for (const SequenceCase& sequence : case_.sequences) {
    const int32_t b = case_.geometry.block_size;
    block_tables_.emplace_back(static_cast<size_t>((sequence.num_keys() + b - 1) / b));
    num_blocks += static_cast<int32_t>(block_tables_.back().size());
  }
  std::vector<int32_t> physical(static_cast<size_t>(num_blocks));
  std::iota(physical.begin(), physical.end(), 0);
  std::shuffle(physical.begin(), physical.end(), random);
  for (std::vector<int32_t>& table : block_tables_) {
    for (int32_t& block : table) {
      block = physical.back();
      physical.pop_back();
    }
  }
  kv_ = {device_.Allocate(layout.tile_bytes * static_cast<size_t>(num_blocks)),
         device_.Allocate(layout.record_bytes * static_cast<size_t>(num_blocks))};
  kv_.table = case_.table;
  if (case_.window > 0) kv_.records = nullptr;
  no_tables_.resize(block_tables_.size());
  more_tables_.resize(block_tables_.size());
  if (case_.index_metric.rows > 0) kv_.index_metric = device_.Put(case_.index_metric.data);
  if (case_.index_centre.rows > 0) kv_.index_centre = device_.Put(case_.index_centre.data);

  std::vector<int32_t> begin;
  for (size_t s = 0; s < case_.sequences.size(); ++s) {
    const SequenceCase& sequence = case_.sequences[s];
    begin.push_back(sequence.shared_blocks * case_.geometry.block_size);
    if (sequence.parent < 0) continue;
    std::copy_n(block_tables_[static_cast<size_t>(sequence.parent)].begin(), sequence.shared_blocks,
                block_tables_[s].begin());
  }
  for (const bool forked : {false, true}) {
    for (int cut = 0; cut < 3; ++cut) {
      std::vector<int32_t> end = begin;
      for (size_t s = 0; s < begin.size(); ++s) {
        const SequenceCase& sequence = case_.sequences[s];
        if ((sequence.parent >= 0) != forked) continue;
        const int32_t left = sequence.position - begin[s];
        end[s] += cut == 2 ? left : static_cast<int32_t>(Uniform(random, 0, left));
      }
      Append(begin, end);
      begin = end;
    }
  }
  if (case_.window > 0) Release(layout, num_blocks);
  std::vector<int32_t> end;
  for (const SequenceCase& sequence : case_.sequences) end.push_back(sequence.num_keys());
  Append(begin, end);
}

void AttentionStep::SetTables(size_t sequence, SequenceRows& rows) {
  const std::vector<int32_t>& table = block_tables_[sequence];
  if (case_.table == 0) {
    rows.block_table = table;
    return;
  }
  no_tables_[sequence].assign(table.size(), -1);
  more_tables_[sequence].assign(static_cast<size_t>(case_.table), no_tables_[sequence]);
  more_tables_[sequence].back() = table;
  more_tables_[sequence].emplace_back(no_tables_[sequence]);
  rows.block_table = no_tables_[sequence];
  rows.more_tables = more_tables_[sequence];
}

void AttentionStep::Release(const KvLayout& layout, int32_t num_blocks) {
  std::vector<bool> held(static_cast<size_t>(num_blocks), false);
  for (size_t s = 0; s < block_tables_.size(); ++s) {
    const int32_t first =
        WindowBegin(case_.sequences[s].position, case_.window) / case_.geometry.block_size;
    std::fill_n(block_tables_[s].begin(), first, -1);
    for (const int32_t block : block_tables_[s]) {
      if (block >= 0) held[static_cast<size_t>(block)] = true;
    }
  }
  const std::vector<uint8_t> not_a_number(layout.tile_bytes, 0xFF);
  for (size_t block = 0; block < held.size(); ++block) {
    if (held[block]) continue;
    device_->Upload(kv_.tiles + block * layout.tile_bytes, not_a_number.data(), layout.tile_bytes);
  }
}

void AttentionStep::Append(const std::vector<int32_t>& begin, const std::vector<int32_t>& end) {
  const int64_t cols = static_cast<int64_t>(case_.geometry.num_kv_heads) * case_.geometry.head_dim;
  HostTensor k(0, cols);
  HostTensor v(0, cols);
  std::vector<SequenceRows> sequences;
  for (size_t s = 0; s < begin.size(); ++s) {
    if (begin[s] == end[s]) continue;
    sequences.push_back({.row_begin = static_cast<int32_t>(k.rows),
                         .num_rows = end[s] - begin[s],
                         .position = begin[s],
                         .kind = case_.sequences[s].kind});
    SetTables(s, sequences.back());
    const SequenceCase& sequence = case_.sequences[s];
    k.data.insert(k.data.end(), sequence.k.row(begin[s]), sequence.k.row(end[s]));
    v.data.insert(v.data.end(), sequence.v.row(begin[s]), sequence.v.row(end[s]));
    k.rows = v.rows = k.rows + end[s] - begin[s];
  }
  if (sequences.empty()) return;
  const std::vector<int32_t> tokens(static_cast<size_t>(k.rows));
  device_->Plan({tokens, sequences});
  device_->AppendKv(
      {.k = device_.Put(k, 5), .v = device_.Put(v, 3), .geometry = case_.geometry, .kv = kv_});
  EXPECT_EQ(device_->Finish(), absl::OkStatus());
}

BlockRecord AttentionStep::Record(size_t sequence, int32_t ordinal, int32_t kv_head) {
  return device_->ReadRecord(case_.geometry, kv_,
                             block_tables_[sequence][static_cast<size_t>(ordinal)], kv_head);
}

AttentionResult AttentionStep::Run(int times) {
  const int32_t heads = case_.num_query_heads;
  const int32_t kv_heads = case_.geometry.num_kv_heads;
  std::vector<SequenceRows> sequences;
  std::vector<std::vector<float>> frozen;  // [L, HQ] each
  std::vector<std::vector<float>> head_z;  // likewise
  int32_t num_rows = 0;
  int64_t capacity = 1;
  int64_t list_rows = 0;  // up to the last decode row: others need no lists
  for (size_t s = 0; s < case_.sequences.size(); ++s) {
    const SequenceCase& sequence = case_.sequences[s];
    std::vector<float> profile(static_cast<size_t>(heads), 1e3f);  // of the other layer
    profile.insert(profile.end(), sequence.thresholds.begin(), sequence.thresholds.end());
    frozen.push_back(profile);
    std::vector<float> widths(static_cast<size_t>(heads),
                              sequence.attention.z > 1.0f ? 0.0f : 9.0f);
    widths.insert(widths.end(), sequence.head_z.begin(), sequence.head_z.end());
    head_z.push_back(widths);
    sequences.push_back({.row_begin = num_rows,
                         .num_rows = sequence.num_rows,
                         .position = sequence.position,
                         .kind = sequence.kind,
                         .attention = sequence.attention,
                         .tempered = sequence.tempered,
                         .calibrate = sequence.calibrate});
    SetTables(s, sequences.back());
    num_rows += sequence.num_rows;
    if (sequence.kind == RowKind::kDecode) list_rows = num_rows;
    capacity = std::max<int64_t>(capacity, sequence.num_keys() / case_.geometry.block_size);
  }
  for (size_t s = 0; s < frozen.size(); ++s) {
    if (!case_.sequences[s].thresholds.empty()) sequences[s].frozen_thresholds = frozen[s].data();
    if (!case_.sequences[s].head_z.empty()) sequences[s].head_z = head_z[s].data();
  }

  const auto rows = static_cast<size_t>(num_rows);
  const size_t lists = rows * static_cast<size_t>(kv_heads);
  AttentionResult result;
  result.tokens_attended.assign(rows * static_cast<size_t>(heads), -1);
  result.tokens_read.assign(lists, -1);
  result.values_read.assign(lists, -1);

  const TensorView q = device_.Put(case_.q, 7);
  const TensorView thresholds = device_.Empty(num_rows, heads, 1);
  // With a row behind them that must stay as it is.
  const auto row_entries = static_cast<size_t>(kv_heads * capacity);
  const std::vector<uint32_t> unset(static_cast<size_t>(list_rows + 1) * row_entries, 0xFFFFFFFFu);
  const BlockSelection selection = {
      device_.Put(unset),
      device_.Put(unset),
      device_.Put(std::vector<int32_t>(lists, -1)),
      capacity,
      list_rows,
      device_.Put(std::vector<int32_t>(static_cast<size_t>(list_rows * heads), -7))};
  const float* sinks = case_.sinks.empty() ? nullptr : device_.Put(case_.sinks);
  const bool predicts = case_.predictor_weight.rows > 0;
  const std::vector<int32_t> tokens(rows);
  const ThresholdParams prediction = {
      .layer = kLayer,
      .q = q,
      .weight = predicts ? device_.Put(case_.predictor_weight.data) : nullptr,
      .bias = predicts ? device_.Put(case_.predictor_bias) : nullptr,
      .out = thresholds};
  const SelectBlocksParams select = {
      .layer = kLayer,
      .q = q,
      .thresholds = thresholds,
      .num_query_heads = heads,
      .geometry = case_.geometry,
      .kv = kv_,
      .softmax_scale = case_.softmax_scale(),
      .selection = selection,
      .counts = {result.tokens_attended.data(), result.tokens_read.data(),
                 result.values_read.data()},
      .sinks = sinks};
  // A word more than needed, and a row behind them that must stay as it is.
  const int64_t words = capacity / 64 + 2;
  const auto mask_words = static_cast<size_t>(heads * words);
  const std::vector<uint64_t> no_masks((rows + 1) * mask_words, kUnsetWord);
  const PrefillSelection prefill_masks = {device_.Put(no_masks), words};
  const SelectPrefillParams select_prefill = {.layer = kLayer,
                                              .q = q,
                                              .thresholds = thresholds,
                                              .num_query_heads = heads,
                                              .geometry = case_.geometry,
                                              .kv = kv_,
                                              .softmax_scale = case_.softmax_scale(),
                                              .selection = prefill_masks,
                                              .counts = select.counts,
                                              .sinks = sinks};
  AttentionParams attention = {
      .q = q,
      .thresholds = thresholds,
      .num_query_heads = heads,
      .geometry = case_.geometry,
      .kv = kv_,
      .softmax_scale = case_.softmax_scale(),
      .gate = case_.gate,
      .beta = case_.beta,
      .selection = selection,
      .out = device_.Empty(num_rows, q.cols, 2, device_.activation_dtype()),
      .values_read = result.values_read.data(),
      .prefill = prefill_masks,
      .sinks = sinks};
  if (case_.window > 0) {
    attention.window = case_.window;
    attention.thresholds = {};
    attention.selection = {};
    attention.values_read = nullptr;
    attention.prefill = {};
    for (int i = 0; i < times; ++i) {
      device_->Plan({tokens, sequences});
      device_->DecodeAttention(attention);
      device_->PrefillAttention(attention);
      EXPECT_EQ(device_->Finish(), absl::OkStatus());
    }
    result.selection.resize(lists);
    result.out = device_.Get(attention.out);
    return result;
  }
  const bool calibrates =
      std::ranges::any_of(sequences, [](const SequenceRows& s) { return s.calibrate; });
  const std::vector<uint64_t> cells_before(
      calibrates ? static_cast<size_t>(heads * CalibrationCells(case_.bins).size()) : 0, 7);
  uint64_t* cells = device_.Put(cells_before);
  const CalibrationParams calibration = {.q = q,
                                         .thresholds = thresholds,
                                         .num_query_heads = heads,
                                         .geometry = case_.geometry,
                                         .kv = kv_,
                                         .softmax_scale = case_.softmax_scale(),
                                         .gate = case_.gate,
                                         .beta = case_.beta,
                                         .bins = case_.bins,
                                         .cells = cells};
  std::vector<uint32_t> chosen(lists * static_cast<size_t>(capacity));
  for (size_t list = 0; list < chosen_.size(); ++list) {
    for (const auto& [block, mask] : chosen_[list]) {
      chosen[list * static_cast<size_t>(capacity) + block] = mask;
    }
  }
  int32_t row = 0;
  for (const SequenceRows& sequence : sequences) {
    for (int32_t i = 0; i < sequence.num_rows; ++i, ++row) {
      if (sequence.kind == RowKind::kDecode && row % 2 == 0) result.shadow_rows.push_back(row);
    }
  }
  result.mass.resize(result.shadow_rows.size() * static_cast<size_t>(heads));
  result.error.resize(result.mass.size());
  for (int i = 0; i < times; ++i) {
    device_->Upload(reinterpret_cast<std::byte*>(cells), cells_before.data(),
                    cells_before.size() * sizeof(uint64_t));
    result.above.assign(static_cast<size_t>(heads), 0);
    result.above_admitted.assign(static_cast<size_t>(heads), 0);
    device_->Plan({tokens, sequences});
    device_->PredictThresholds(prediction);
    if (chosen_.empty()) {
      device_->SelectBlocks(select);
    } else {
      device_->ListBlocks(
          {select.q, chosen.data(), heads, case_.geometry, selection, select.counts, kv_.table});
    }
    device_->SelectPrefillBlocks(select_prefill);
    device_->DecodeAttention(attention);
    device_->PrefillAttention(attention);
    device_->CountRecall({attention, result.above.data(), result.above_admitted.data()});
    // A step that measures need not be one that a backend replays.
    if (i == 0) {
      device_->MeasureShadow(
          {attention, result.shadow_rows, result.mass.data(), result.error.data()});
    }
    if (calibrates) device_->CollectCalibration(calibration);
    EXPECT_EQ(device_->Finish(), absl::OkStatus());
  }

  result.out = device_.Get(attention.out);
  result.cells = device_.Get(cells, cells_before.size());
  for (uint64_t& cell : result.cells) cell -= 7;
  const std::vector<int32_t> counts = device_.Get(selection.counts, lists);
  const std::vector<uint32_t> blocks = device_.Get(selection.blocks, unset.size());
  const std::vector<uint32_t> masks = device_.Get(selection.heads, unset.size());
  for (const auto* values : {&blocks, &masks}) {
    EXPECT_TRUE(std::ranges::all_of(std::span(*values).last(row_entries), [](uint32_t value) {
      return value == 0xFFFFFFFFu;
    })) << "behind the lists";
  }
  std::vector<bool> admits_all;  // [R]
  for (const SequenceRows& sequence : sequences) {
    admits_all.insert(admits_all.end(), static_cast<size_t>(sequence.num_rows),
                      sequence.attention.admit_all);
  }
  const uint32_t all = case_.group() == 32 ? ~0u : (1u << case_.group()) - 1;
  for (size_t list = 0; list < lists; ++list) {
    std::vector<SelectedBlock>& selected = result.selection.emplace_back();
    for (int32_t n = 0; n < counts[list]; ++n) {
      const size_t at = list * static_cast<size_t>(capacity) + static_cast<size_t>(n);
      if (admits_all[list / static_cast<size_t>(case_.geometry.num_kv_heads)]) {
        selected.emplace_back(static_cast<uint32_t>(n), all);
      } else {
        selected.emplace_back(blocks[at], masks[at]);
      }
    }
  }
  TakePrefill(case_, device_.Get(prefill_masks.admitted, no_masks.size()), words, result);
  return result;
}

}  // namespace eta::testing
