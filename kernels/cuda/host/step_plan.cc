#include "kernels/cuda/host/step_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace eta::cuda {
namespace {

// Alignment of every array: one cache line of L2.
constexpr size_t kAlignment = 128;

size_t AlignUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

template <typename T>
T* Array(std::byte* step, size_t offset) {
  return reinterpret_cast<T*>(step + offset);
}

RowRole RoleOf(RowKind kind) {
  return kind == RowKind::kPrefill ? RowRole::kPrefill : RowRole::kDecode;
}

// Rows of the arrays. A step without rows has arrays too, and sequences without rows have a place.
int32_t PaddedRowsOf(const BatchView& batch) {
  const auto sequences = static_cast<int64_t>(batch.sequences.size());
  return static_cast<int32_t>(PaddedRows(std::max<int64_t>({batch.num_rows(), sequences, 1})));
}

StepRow MakeRow(const SequenceRows& sequence, int32_t index, int32_t i, int32_t token) {
  StepRow row = {};
  row.role = RoleOf(sequence.kind);
  row.token = token;
  row.position = sequence.position + i;
  row.sequence = index;
  row.rope_theta = sequence.rope_theta;
  row.attention = sequence.attention;
  return row;
}

// How long the decode rows of a step are.
struct DecodeLengths {
  int64_t rows = 0;
  int64_t longest = 0;
  int64_t total = 0;

  void Add(const SequenceRows& sequence) {
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int64_t tokens = int64_t{sequence.position} + i + 1;
      ++rows;
      longest = std::max(longest, tokens);
      total += tokens;
    }
  }
  // Equal shares of each row's own keys then end about together. Beyond kLong a merge is small
  // beside the keys.
  bool even() const {
    constexpr int64_t kLong = 32768;
    return longest <= kLong && longest * rows <= 2 * total + kShortKeys * rows;
  }
};

// Writes the bundles of a step's decode rows.
class BundleWriter {
 public:
  explicit BundleWriter(RowBundle* to) : to_(to) {}

  void Add(const SequenceRows& sequence) {
    for (int32_t i = 0; i < sequence.num_rows; i += kBundleRows) {
      const int32_t rows = std::min(kBundleRows, sequence.num_rows - i);
      to_[count_++] = {sequence.row_begin + i, rows};
      longest_ = std::max(longest_, rows);
    }
  }
  Bundles bundles() const {
    if (longest_ == 1) return {};
    return {static_cast<int32_t>(PaddedRows(count_)),
            static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(longest_)))};
  }

 private:
  RowBundle* to_;
  int32_t count_ = 0;
  int32_t longest_ = 1;
};

// The words of the sequence's tempered keys up to the last one that is not 0. Special tokens mostly
// stand at a sequence's beginning.
std::span<const uint64_t> TemperedWords(const SequenceRows& sequence) {
  std::span<const uint64_t> words = sequence.tempered;
  while (!words.empty() && words.back() == 0) words = words.first(words.size() - 1);
  return words;
}

// Entries of all block tables of a sequence.
size_t TableEntries(const SequenceRows& sequence) {
  size_t entries = sequence.block_table.size();
  for (const std::span<const int32_t> table : sequence.more_tables) entries += table.size();
  return entries;
}

int32_t NumTables(const BatchView& batch) {
  size_t more = 0;
  for (const SequenceRows& sequence : batch.sequences) {
    more = std::max(more, sequence.more_tables.size());
  }
  return static_cast<int32_t>(1 + more);
}

// Writes rows and sequences of block tables 1, 2, ..., as those of table 0 are but for where a
// table begins, and the tables from entry `table_begin` on.
void PackMoreTables(const BatchView& batch, const StepLayout& layout, int32_t padded_rows,
                    int32_t num_tables, int32_t table_begin, std::byte* step) {
  auto* tables = Array<int32_t>(step, layout.tables());
  for (int32_t t = 1; t < num_tables; ++t) {
    auto* rows = Array<StepRow>(step, layout.rows(t));
    auto* sequences = Array<StepSequence>(step, layout.sequences(t));
    const auto places = static_cast<size_t>(padded_rows);
    std::memcpy(rows, step + layout.rows(), places * sizeof(StepRow));
    std::memcpy(sequences, step + layout.sequences(), places * sizeof(StepSequence));
    for (size_t s = 0; s < batch.sequences.size(); ++s) {
      const SequenceRows& sequence = batch.sequences[s];
      sequences[s].table_begin = table_begin;
      for (int32_t i = 0; i < sequence.num_rows; ++i) {
        rows[sequence.row_begin + i].table_begin = table_begin;
      }
      if (static_cast<size_t>(t) > sequence.more_tables.size()) continue;
      std::ranges::copy(sequence.table(t), tables + table_begin);
      table_begin += static_cast<int32_t>(sequence.table(t).size());
    }
  }
}

// The index of the sequence's profile in `profiles`; a new profile is added. -1: the sequence has
// none.
int32_t ProfileIndex(const SequenceRows& sequence, std::vector<StepProfile>& profiles) {
  const StepProfile profile = {sequence.frozen_thresholds, sequence.head_z};
  if (profile == StepProfile()) return -1;
  const auto found = std::ranges::find(profiles, profile);
  const auto index = static_cast<int32_t>(found - profiles.begin());
  if (found == profiles.end()) profiles.push_back(profile);
  return index;
}

}  // namespace

int64_t PaddedRows(int64_t rows) {
  constexpr int64_t kSmall[] = {0, 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128};
  if (rows <= 128) return *std::ranges::lower_bound(kSmall, rows);
  const int64_t multiple = rows <= 1024 ? 64 : 256;
  return (rows + multiple - 1) / multiple * multiple;
}

StepLayout::StepLayout(int32_t padded_rows, int32_t num_tables) : padded_rows_(padded_rows) {
  const auto rows = static_cast<size_t>(padded_rows);
  rows_ = AlignUp(sizeof(StepCounts));
  sequences_ = rows_ + AlignUp(rows * sizeof(StepRow));
  screen_begin_ = sequences_ + AlignUp(rows * sizeof(StepSequence));
  bundles_ = screen_begin_ + AlignUp((rows + 1) * sizeof(int32_t));
  more_rows_ = bundles_ + AlignUp(rows * sizeof(RowBundle));
  table_bytes_ = screen_begin_ - rows_;
  tables_ = more_rows_ + static_cast<size_t>(num_tables - 1) * table_bytes_;
}

StepView StepLayout::View(const std::byte* step, int32_t table) const {
  return {.counts = reinterpret_cast<const StepCounts*>(step),
          .rows = reinterpret_cast<const StepRow*>(step + rows(table)),
          .sequences = reinterpret_cast<const StepSequence*>(step + sequences(table)),
          .tables = reinterpret_cast<const int32_t*>(step + tables_),
          .screen_begin = reinterpret_cast<const int32_t*>(step + screen_begin_),
          .frozen = nullptr,
          .head_z = nullptr,
          .num_rows = padded_rows_};
}

size_t StepBytes(const BatchView& batch) {
  size_t entries = 0;
  for (const SequenceRows& sequence : batch.sequences) {
    entries += TableEntries(sequence) + 2 * TemperedWords(sequence).size();
  }
  const StepLayout layout(PaddedRowsOf(batch), NumTables(batch));
  return layout.tables() + entries * sizeof(int32_t);
}

PackedStep PackStep(const BatchView& batch, std::byte* step) {
  PackedStep packed;
  packed.num_rows = batch.num_rows();
  packed.padded_rows = PaddedRowsOf(batch);
  packed.num_tables = NumTables(batch);
  const StepLayout layout(packed.padded_rows, packed.num_tables);
  std::memset(step, 0, layout.tables());
  auto* rows = Array<StepRow>(step, layout.rows());
  auto* sequences = Array<StepSequence>(step, layout.sequences());
  auto* tables = Array<int32_t>(step, layout.tables());
  int32_t table_begin = 0;
  int32_t tempered_begin = 0;
  DecodeLengths lengths;
  BundleWriter bundles(Array<RowBundle>(step, layout.bundles()));
  for (const SequenceRows& sequence : batch.sequences) {
    tempered_begin += static_cast<int32_t>(TableEntries(sequence));
  }
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceRows& sequence = batch.sequences[s];
    const auto index = static_cast<int32_t>(s);
    const int32_t profile = ProfileIndex(sequence, packed.profiles);
    const std::span<const uint64_t> words = TemperedWords(sequence);
    const TemperedKeys tempered = {tempered_begin, static_cast<int32_t>(2 * words.size())};
    for (size_t w = 0; w < words.size(); ++w) {
      const uint32_t halves[2] = {static_cast<uint32_t>(words[w]),
                                  static_cast<uint32_t>(words[w] >> 32)};
      std::memcpy(tables + tempered_begin + 2 * w, halves, sizeof(halves));
    }
    tempered_begin += tempered.words;
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int32_t r = sequence.row_begin + i;
      rows[r] = MakeRow(sequence, index, i, batch.tokens[static_cast<size_t>(r)]);
      rows[r].table_begin = table_begin;
      rows[r].frozen = sequence.frozen_thresholds != nullptr ? profile : -1;
      rows[r].head_z = sequence.head_z != nullptr ? profile : -1;
      rows[r].tempered = tempered;
    }
    const bool calibrates = sequence.kind == RowKind::kPrefill && sequence.calibrate;
    sequences[s] = {.row_begin = sequence.row_begin,
                    .num_rows = sequence.num_rows,
                    .position = sequence.position,
                    .table_begin = table_begin,
                    .role = RoleOf(sequence.kind),
                    .calibrate = calibrates ? 1 : 0,
                    .sparse = IsSparsePrefill(sequence) ? 1 : 0,
                    .tempered = tempered};
    packed.calibrates = packed.calibrates || calibrates;
    std::ranges::copy(sequence.block_table, tables + table_begin);
    table_begin += static_cast<int32_t>(sequence.block_table.size());
    if (sequence.kind == RowKind::kDecode) {
      packed.relative = packed.relative || sequence.attention.relative;
      packed.confirms =
          packed.confirms || (sequence.attention.confirm && !sequence.attention.admit_all);
      packed.decode_rows.push_back({sequence.row_begin, sequence.num_rows});
      packed.reads_all =
          packed.reads_all && sequence.attention.admit_all && !sequence.attention.relative;
      lengths.Add(sequence);
      bundles.Add(sequence);
      packed.single_rows = packed.single_rows && sequence.num_rows <= 1;
      packed.few_rows = packed.few_rows && sequence.num_rows <= kBundleRows;
    } else {
      packed.has_prefill = true;
      packed.single_rows = false;
      packed.few_rows = false;
      if (IsSparsePrefill(sequence)) {
        packed.sparse_rows.push_back({sequence.row_begin, sequence.num_rows});
        packed.sparse_relative = packed.sparse_relative || sequence.attention.relative;
      }
    }
  }
  PackMoreTables(batch, layout, packed.padded_rows, packed.num_tables, table_begin, step);
  packed.even = lengths.even();
  packed.longest = lengths.longest;
  packed.bundles = bundles.bundles();
  *Array<StepCounts>(step, layout.counts()) = {
      .num_rows = packed.num_rows,
      .num_sequences = static_cast<int32_t>(batch.sequences.size()),
      .screen_units = 0};
  return packed;
}

void SetTokens(std::span<const int32_t> tokens, int32_t padded_rows, std::byte* step) {
  auto* rows = Array<StepRow>(step, StepLayout(padded_rows).rows());
  for (size_t r = 0; r < tokens.size(); ++r) rows[r].token = tokens[r];
}

void PackScreening(int32_t padded_rows, int32_t block_size, std::byte* step) {
  const StepLayout layout(padded_rows);
  const auto* rows = Array<StepRow>(step, layout.rows());
  auto* begin = Array<int32_t>(step, layout.screen_begin());
  int32_t units = 0;
  for (int32_t r = 0; r < padded_rows; ++r) {
    begin[r] = units;
    if (rows[r].role != RowRole::kDecode) continue;
    if (rows[r].attention.admit_all && !rows[r].attention.relative) continue;
    const int32_t full_blocks = (rows[r].position + 1) / block_size;
    units += (full_blocks + kScreenBlocks - 1) / kScreenBlocks;
  }
  begin[padded_rows] = units;
  Array<StepCounts>(step, layout.counts())->screen_units = units;
}

}  // namespace eta::cuda
