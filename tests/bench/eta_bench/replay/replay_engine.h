// The inside of the engine, without its thread, that writes known answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/batching/drafts/draft_options.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/front/dispatcher.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/cpu/workers.h"
#include "tests/bench/eta_bench/replay/replay_backend.h"
#include "tests/bench/eta_bench/replay/replay_cases.h"

namespace eta::bench {

struct ReplayEngineOptions {
  int32_t streams = 1;  // at a time, at most
  int32_t max_step_tokens = 256;
  int32_t tokens = 0;  // of the longest case, prompt and answer
  std::string kv_dtype = "float16";
  std::string weights = "native";
  bool full_attention = false;  // else the model's own
  bool own_answers = false;     // the model's own, of the cases' lengths
};

// What became of an answer: all of it but the times is the same with and without drafts.
struct ReplayedAnswer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;  // of the tokens that the model would have drawn
  AttentionSums attention;
};

struct ReplayRun {
  double seconds = 0.0;              // of steps without prompts in which all streams wrote
  int64_t tokens = 0;                // that they drew
  int64_t steps = 0;                 // but for those that made drafts
  std::vector<double> step_seconds;  // of each of them
  DraftCounts drafts;
  std::vector<ReplayedAnswer> answers;

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  void Add(const ReplayRun& other);  // but for its answers
  // Keys, values and records that a row of an answer read, on average.
  double row_bytes() const;
};

class ReplayEngine {
 public:
  // `tokenizer`: of a model without one, one that knows ids only.
  ReplayEngine(std::shared_ptr<Backend> backend, const TensorSource& source,
               const TokenizerFiles& tokenizer, const ReplayEngineOptions& options);
  ~ReplayEngine();

  const Backend& backend() const { return backend_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ModelConfig& config() const { return model_->config(); }
  // Of weights, that a step of one row reads.
  double step_bytes() const { return static_cast<double>(model_->row_bytes()); }

  // Caches the prompts of the cases, as many as streams at most, without computing them: their keys
  // and values are random numbers.
  void Fill(std::span<const ReplayCase> cases, uint64_t seed, cpu::Workers& workers);

  // All of the cases, `streams` at a time. Prompts are shared with runs before.
  ReplayRun Run(std::span<const ReplayCase> cases, int32_t streams, const DraftOptions& drafts);

 private:
  class Sink;
  class Watch;

  SequenceOptions OptionsOf(const ReplayCase& replayed) const;
  std::shared_ptr<Sink> Submit(const ReplayCase& replayed, uint64_t seed,
                               const DraftOptions& drafts);

  const ReplayEngineOptions options_;
  ReplayBackend backend_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

}  // namespace eta::bench
