// SelectPrefillBlocks decides which full blocks each row of sparse prefill attends to, as
// SelectBlocks does for a decode row of the same sequence (block_select.cc). It leaves a mask per
// (row, query head), and counts what rows attend to and what tiles of rows read (eta-semantics.md,
// "Sparse prefill").

#include <algorithm>
#include <vector>

#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

// The tokens that some row of a tile attends to with some head of a group.
class TileReads {
 public:
  void Clear() { tokens_.clear(); }
  void Add(int32_t begin, int32_t end) {
    if (tokens_.size() < static_cast<size_t>(end)) tokens_.resize(static_cast<size_t>(end));
    std::fill(tokens_.begin() + begin, tokens_.begin() + end, true);
  }
  int32_t count() const {
    return static_cast<int32_t>(std::count(tokens_.begin(), tokens_.end(), true));
  }

 private:
  std::vector<bool> tokens_;
};

// Writes masks and tokens attended of one (row, KV head), and adds what the row reads.
void SelectForKvHead(const SelectPrefillParams& params, const KvPages& pages, const Row& row,
                     int32_t kv_head, TileReads& reads) {
  const int32_t b = params.geometry.block_size;
  const int32_t n = row.num_full_blocks(b);
  const int32_t tail = row.num_keys() - n * b;
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  const int64_t words = params.selection.words;
  const int64_t first = static_cast<int64_t>(row.index) * params.num_query_heads +
                        static_cast<int64_t>(kv_head) * group;
  uint64_t* masks = params.selection.admitted + first * words;  // [G, words]
  std::fill_n(masks, group * words, uint64_t{0});
  for (int32_t g = 0; g < group; ++g) {
    const Admission admission =
        AdmitBlocks({params.layer, params.q, params.thresholds, params.num_query_heads,
                     params.geometry, params.softmax_scale, params.sinks},
                    pages, row, kv_head * group + g);
    int32_t attended = tail;
    for (int32_t j = 0; j < n; ++j) {
      if (!admission.blocks[static_cast<size_t>(j)]) continue;
      attended += b;
      reads.Add(j * b, (j + 1) * b);
      // With shared reads the mask of every head of the group.
      for (int32_t to = 0; to < group; ++to) {
        if (to != g && !row.sequence.attention.shared_reads) continue;
        masks[to * words + j / 64] |= uint64_t{1} << (j % 64);
      }
    }
    params.counts.tokens_attended[first + g] = attended;
  }
  reads.Add(n * b, row.num_keys());
}

}  // namespace

void SelectPrefillBlocks(const BatchView& batch, const SelectPrefillParams& params) {
  const KvPages pages(params.geometry, params.kv);
  const int32_t kv_heads = params.geometry.num_kv_heads;
  for (int32_t h = 0; h < kv_heads; ++h) {
    TileReads reads;
    int64_t tile_at = 0;  // where the tile's tokens read stand
    ForEachRow(batch, RowKind::kPrefill, [&](const Row& row) {
      if (!IsSparsePrefill(row.sequence)) return;
      const int64_t at = static_cast<int64_t>(row.index) * kv_heads + h;
      if (row.position == row.sequence.position || row.position % kPrefillTileRows == 0) {
        reads.Clear();
        tile_at = at;
      }
      SelectForKvHead(params, pages, row, h, reads);
      for (int32_t* counts : {params.counts.tokens_read, params.counts.values_read}) {
        if (counts == nullptr) continue;
        counts[at] = 0;
        counts[tile_at] = reads.count();
      }
    });
  }
}

}  // namespace eta::reference
