// What a step of training, or an evaluation between two steps, has to tell.
#pragma once

#include <cstdint>
#include <optional>

namespace eta::training {

struct StepRecord {
  int64_t step = 0;              // that was done, from 1
  int64_t tokens = 0;            // seen so far
  double seconds = 0.0;          // of training so far
  double tokens_per_second = 0;  // lately
  double loss = 0.0;             // nats per token: cross-entropy, or divergence from the teacher
  std::optional<double> answer_loss;    // nats per token of answers of retrieval tasks
  std::optional<double> head_density;   // mean gate of the keys before a row
  std::optional<double> block_density;  // by whole blocks: the largest gate of each
  double gradient_norm = 0.0;           // before clipping
  double rate = 0.0;
  double beta = 1.0;
  double gate_strength = 1.0;
  double sparsity_weight = 0.0;
  int64_t skipped_steps = 0;
};

// Over held-out text, as the server would attend; as_trained: by training's own forward pass, with
// the attention that the model was trained with, which the server does not run.
struct EvaluationRecord {
  int64_t step = 0;
  bool test = false;  // on the text of --test, in place of --held_out
  bool as_trained = false;
  double full_perplexity = 0.0;             // as_trained: with its own attention
  std::optional<double> sparse_perplexity;  // absent: the model has no sparse attention
  double head_density = 1.0;                // of sparse decode rows
  double union_density = 1.0;
  // Of native sparse attention: keys and values that a row reads, and that caches hold, over those
  // of full attention.
  std::optional<double> reads;
  std::optional<double> holds;
  int32_t needles = 0;  // windows that ask for one
  int32_t full_hits = 0;
  int32_t sparse_hits = 0;
};

}  // namespace eta::training
