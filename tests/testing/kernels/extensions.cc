// What came after the paper, added to random cases.

#include <algorithm>
#include <cmath>

#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {
namespace {

// A second moment of queries that some directions rule: A^T A + I / 4.
HostTensor Metric(Random& random, const KvGeometry& geometry) {
  const int64_t d = geometry.head_dim;
  HostTensor metric(geometry.num_kv_heads * d, d);
  for (int32_t h = 0; h < geometry.num_kv_heads; ++h) {
    const HostTensor factor = Normal(random, 5, d);
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t j = 0; j < d; ++j) {
        float sum = i == j ? 0.25f : 0.0f;
        for (int64_t r = 0; r < factor.rows; ++r) sum += factor.row(r)[i] * factor.row(r)[j];
        metric.row(h * d + i)[j] = sum;
      }
    }
  }
  return metric;
}

// Brings the other keys of half the blocks nearer to the outlier, so that their deviation along a
// query may lie beyond g (eta-semantics.md, "Relative thresholds").
void Widen(Random& random, int32_t begin, int32_t end, int64_t outlier, HostTensor& keys) {
  if (Often(random, 2)) return;
  const auto width = static_cast<float>(UniformReal(random, 1.0, 3.5));
  for (int32_t t = begin; t < end; ++t) {
    for (int64_t i = 0; t != outlier && i < keys.cols; ++i) keys.row(t)[i] *= width;
  }
}

// Makes one key of every block stand out, so that there is no doubt which one does. Blocks that a
// sequence shares have those of its parent. `wide`: of the widths of blocks; null: all stay.
void PlantOutliers(Random& random, Random* wide, int32_t block_size,
                   const std::vector<SequenceCase>& before, SequenceCase& sequence) {
  const int32_t shared = sequence.shared_blocks * block_size;
  if (shared > 0) {
    const SequenceCase& parent = before[static_cast<size_t>(sequence.parent)];
    std::copy_n(parent.k.row(0), shared * sequence.k.cols, sequence.k.row(0));
  }
  for (int32_t begin = shared; begin < sequence.num_keys(); begin += block_size) {
    const int64_t t = begin + Uniform(random, 0, block_size - 1);
    if (wide != nullptr) {
      Widen(*wide, begin, std::min(begin + block_size, sequence.num_keys()), t, sequence.k);
    }
    if (t >= sequence.num_keys()) continue;
    for (int64_t i = 0; i < sequence.k.cols; ++i) sequence.k.row(t)[i] *= 4.0f;
  }
}

void ChooseOptions(Random& random, const AttentionCase& made, SequenceCase& sequence) {
  AttentionOptions& options = sequence.attention;
  if (Often(random, 3)) options.sink_blocks = static_cast<int32_t>(Uniform(random, 1, 3));
  options.shared_reads = Often(random, 3);
  if (Often(random, 3)) {
    const auto words = static_cast<size_t>(Uniform(random, 1, sequence.num_keys() / 64 + 1));
    for (size_t w = 0; w < words; ++w) {
      sequence.tempered.push_back(random() & random() & random());
    }
    sequence.tempered[0] |= 1;
  }
  const bool ready = made.geometry.index == IndexKind::kOutlier && made.gate == Gate::kNone;
  if (ready && !Often(random, 4)) {
    options.relative = true;
    options.relative_c = static_cast<float>(UniformReal(random, -5.0, -0.5));
  }
  options.confirm = Often(random, 2);
}

}  // namespace

void AddExtensions(uint64_t seed, bool outlier, AttentionCase& made) {
  Random random(seed + 0x0071e5);  // another stream, so that the rest of the case does not change
  if (outlier) {
    made.geometry.index = IndexKind::kOutlier;
    made.geometry.index_dtype = DType::kInt8;
    if (Often(random, 2)) made.gate = Gate::kNone;
    if (!Often(random, 4)) made.index_metric = Metric(random, made.geometry);
    if (!Often(random, 4)) {
      made.index_centre = Normal(random, made.geometry.num_kv_heads, made.geometry.head_dim, 0.5f);
    }
  }
  Random learned(seed + 0x1e4);  // likewise
  if (Often(learned, 3)) AddSinks(seed, made);
  Random prompts(seed + 0x5fa75e);  // likewise
  Random blocks(seed + 0x3a7e5);    // likewise
  for (SequenceCase& sequence : made.sequences) {
    sequence.attention.sparse_prefill = Often(prompts, 2);
    const bool widths = sequence.sparse_prefill() && Often(prompts, 3);
    for (int32_t h = 0; widths && h < made.num_query_heads; ++h) {
      sequence.head_z.push_back(static_cast<float>(UniformReal(prompts, 0.0, 5.0)));
    }
    if (outlier) {
      PlantOutliers(random, made.gate == Gate::kNone ? &blocks : nullptr, made.geometry.block_size,
                    made.sequences, sequence);
    }
    ChooseOptions(random, made, sequence);
  }
}

void AddSinks(uint64_t seed, AttentionCase& made) {
  Random random(seed + 0x51e4);
  for (int32_t h = 0; h < made.num_query_heads; ++h) {
    made.sinks.push_back(Often(random, 8) ? Pick(random, {-30.0f, 20.0f})
                                          : static_cast<float>(UniformReal(random, -4.0, 5.0)));
  }
}

void AddWindow(uint64_t seed, AttentionCase& made) {
  Random random(seed + 0x31d07);
  const int32_t b = made.geometry.block_size;
  switch (Uniform(random, 0, 5)) {
    case 0:  // the row itself and little else
      made.window = static_cast<int32_t>(Uniform(random, 1, 3));
      break;
    case 1:  // around a block
      made.window = static_cast<int32_t>(std::max<int64_t>(1, b + Uniform(random, -1, 1)));
      break;
    case 2:
      made.window = 2 * b;
      break;
    case 3:  // the whole context, and more
      made.window = Pick(random, {5000, 0x7FFFFFFF});
      break;
    default:
      made.window = static_cast<int32_t>(Uniform(random, 1, 200));
  }
  made.table = static_cast<int32_t>(Uniform(random, 0, 2));
}

}  // namespace eta::testing
