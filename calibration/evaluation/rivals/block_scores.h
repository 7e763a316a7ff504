// Scores of the keys of one block, their log-sum-exp and softmax, as one query head has them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace eta {

// Keys of one block by coordinate, so that a vector holds one coordinate of many keys: coordinate i
// of key t is values[i * stride + t].
struct KeyColumns {
  static constexpr size_t kMostKeys = 128;  // of a block

  // What `stride` must be for `keys` keys: whole vectors.
  static constexpr size_t StrideFor(size_t keys) { return (keys + 15) / 16 * 16; }

  std::span<const float> values = {};  // [d, stride]
  size_t stride = 0;
  size_t count = 0;  // keys, 1 to kMostKeys; the columns behind them are not looked at
};

// [count].
std::vector<float> BlockScores(const KeyColumns& keys, std::span<const float> q,
                               float softmax_scale);

// log-sum-exp of the scores.
double LogMass(const KeyColumns& keys, std::span<const float> q, float softmax_scale);

// How scores become logits (eta-semantics.md, "Gate").
struct ScoreGate {
  bool silu = false;
  float beta = 1.0f;
  float threshold = 0.0f;  // tau_eff
};
// The scores as logits, into the first `count` of `logits`. `own`: the last key is the row's own,
// which no gate tempers.
void GatedLogits(const KeyColumns& keys, std::span<const float> q, float softmax_scale,
                 const ScoreGate& gate, bool own, std::span<float> logits);

// REQUIRES: not empty.
float Largest(std::span<const float> values);

// Replaces each x by exp(x - max) and returns their sum. REQUIRES: max of at least each x; what
// lies 87 or more below it weighs next to nothing.
double Exponentials(std::span<float> logits, float max);

// Adds to `out` [d] the rows of `values` [weights, d], each by its weight.
void AddWeighted(std::span<const float> values, std::span<const float> weights,
                 std::span<float> out);

}  // namespace eta
