// Random ragged steps, with thresholds that leave no doubt about what is admitted.

#include <algorithm>
#include <cmath>

#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {
namespace {

SequenceCase RandomSequence(Random& random, const AttentionCase& attention_case) {
  const int32_t b = attention_case.geometry.block_size;
  SequenceCase sequence;
  sequence.kind = Uniform(random, 0, 3) == 0 ? RowKind::kPrefill : RowKind::kDecode;
  sequence.num_rows = static_cast<int32_t>(
      Uniform(random, 1, sequence.kind == RowKind::kPrefill ? 2 * b / 3 + 5 : 4));
  switch (Uniform(random, 0, 5)) {
    case 0:  // the first token, or a prompt from its start
      sequence.position = 0;
      break;
    case 1:  // less than a block
      sequence.position = static_cast<int32_t>(Uniform(random, 0, b - 1));
      break;
    case 2:  // just around a block's end
      sequence.position = static_cast<int32_t>(
          std::max<int64_t>(0, Uniform(random, 1, 4) * b + Uniform(random, -4, 1)));
      break;
    default:
      sequence.position = static_cast<int32_t>(Uniform(random, 0, std::max(4 * b, 250)));
  }
  AttentionOptions& options = sequence.attention;
  options.offset = Pick(random, {0.0f, 0.4f, -0.5f});
  options.z = Pick(random, {0.0f, 1.0f, 1.5f, 2.0f, 8.0f});
  options.pinned_blocks = static_cast<int32_t>(Uniform(random, 0, 3));
  options.rescue_chunk = Pick(random, {1, 2, 5, 128});
  options.uniform_floor = Uniform(random, 0, 1) == 0;
  options.admit_all = Uniform(random, 0, 7) == 0;
  const int64_t cols =
      static_cast<int64_t>(attention_case.geometry.num_kv_heads) * attention_case.geometry.head_dim;
  sequence.k = DriftingKeys(random, sequence.num_keys(), cols, b);
  sequence.v = Normal(random, sequence.num_keys(), cols);
  return sequence;
}

// A threshold among the bounds that no bound comes nearer to than the clearance.
float ClearThreshold(Random& random, const std::vector<double>& bounds, float offset,
                     double clearance) {
  if (bounds.empty()) return static_cast<float>(UniformReal(random, -2.0, 2.0));
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const size_t pick =
        static_cast<size_t>(Uniform(random, 0, static_cast<int64_t>(bounds.size()) - 1));
    const double shift = Uniform(random, 0, 5) == 0 ? 3.0 : UniformReal(random, -0.5, 0.5);
    const auto threshold = static_cast<float>(bounds[pick] + shift + offset);
    const double effective = static_cast<double>(threshold) - offset;
    if (std::all_of(bounds.begin(), bounds.end(),
                    [&](double bound) { return std::abs(bound - effective) > clearance; })) {
      return threshold;
    }
  }
  return static_cast<float>(*std::max_element(bounds.begin(), bounds.end()) + 1.0 + offset);
}

// Gives the heads of some decoding sequences a z of their own, and collects cells over some
// prompts.
void Calibrated(uint64_t seed, AttentionCase& attention_case) {
  Random random(seed + 0x5ca1e);  // another stream, so that the rest of the case does not change
  if (Uniform(random, 0, 2) == 0) {
    const auto half_range = UniformReal(random, 1.0, 6.0);  // some scores lie outside
    attention_case.bins = {.count = static_cast<int32_t>(Uniform(random, 16, 3000)),
                           .low = -half_range,
                           .high = half_range + 0.5};
  }
  for (SequenceCase& sequence : attention_case.sequences) {
    const bool chosen = Uniform(random, 0, 1) == 0;
    if (sequence.kind == RowKind::kPrefill) {
      sequence.calibrate = chosen;
    } else if (chosen) {
      for (int32_t h = 0; h < attention_case.num_query_heads; ++h) {
        sequence.head_z.push_back(static_cast<float>(Uniform(random, 0, 640)) / kZStepsPerUnit);
      }
    }
  }
}

void PlaceThresholds(Random& random, AttentionCase& attention_case) {
  Device reference({"reference"});
  AttentionStep step(reference, attention_case);
  const KvGeometry& geometry = attention_case.geometry;
  int64_t first_row = 0;
  for (size_t s = 0; s < attention_case.sequences.size(); ++s) {
    SequenceCase& sequence = attention_case.sequences[s];
    for (int32_t h = 0; h < attention_case.num_query_heads; ++h) {
      std::vector<double> bounds;
      for (int32_t i = 0; sequence.selects() && i < sequence.num_rows; ++i) {
        const float* q = attention_case.q.row(first_row + i) + h * geometry.head_dim;
        const int32_t n = (sequence.position + i + 1) / geometry.block_size;
        for (int32_t j = 0; j < n; ++j) {
          bounds.push_back(Bound(attention_case, step.Record(s, j, h / attention_case.group()), q,
                                 sequence.z(h)));
        }
      }
      sequence.thresholds.push_back(
          ClearThreshold(random, bounds, sequence.attention.offset, Clearance(geometry)));
    }
    first_row += sequence.num_rows;
  }
}

}  // namespace

AttentionCase RandomCase(uint64_t seed, NarrowTypes narrow) {
  Random random(seed);
  AttentionCase attention_case;
  attention_case.seed = seed;
  KvGeometry& geometry = attention_case.geometry;
  geometry.num_kv_heads = static_cast<int32_t>(Uniform(random, 1, 3));
  geometry.head_dim = Pick(random, {32, 64, 96, 128});
  geometry.block_size = Pick(random, {4, 8, 16, 24, 32, 64, 128});
  geometry.sub_block = Pick(random, {0, 4});
  geometry.dtype = Pick(random, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  if (narrow.index) geometry.index_dtype = DType::kInt8;
  if (narrow.cache) {
    geometry.dtype = DType::kFloat8E4M3;
    geometry.head_dim = Pick(random, {64, 96, 128});
    geometry.block_size = Pick(random, {16, 32, 64, 128});
  }
  attention_case.num_query_heads = geometry.num_kv_heads * Pick(random, {1, 2, 3, 4, 5, 7, 8, 16});
  attention_case.gate = Uniform(random, 0, 4) == 0 ? Gate::kNone : Gate::kSilu;
  attention_case.beta = Pick(random, {1.0f, 5.0f, 20.0f});
  const int64_t num_sequences = Uniform(random, 1, 8);
  int64_t num_rows = 0;
  for (int64_t s = 0; s < num_sequences; ++s) {
    attention_case.sequences.push_back(RandomSequence(random, attention_case));
    num_rows += attention_case.sequences.back().num_rows;
  }
  attention_case.q = Normal(
      random, num_rows, static_cast<int64_t>(attention_case.num_query_heads) * geometry.head_dim);
  Calibrated(seed, attention_case);
  AddExtensions(seed, narrow.outlier, attention_case);
  PlaceThresholds(random, attention_case);
  return attention_case;
}

}  // namespace eta::testing
