// Measures a model in training as the server would run it: perplexity with full and with sparse
// attention, densities and needles, on texts that it is not trained on (--held_out, --test). It is
// eta-eval's measurement, through the server's own kernels. What the server does not run is
// measured over the same windows by training's own forward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/needles/needle_windows.h"
#include "engine/checkpoint/tensor_source.h"
#include "kernels/backend.h"
#include "kernels/backends/make_backend.h"
#include "training/evaluation/native_sparse_reads.h"
#include "training/model/training_model.h"

namespace eta {
class Tokenizer;
}  // namespace eta

namespace eta::training {

struct HeldOutOptions {
  std::vector<std::string> texts;  // at least one; each is measured and named by itself
  std::string flag = "held_out";   // that names them, in errors
  int32_t context = 0;             // predictions of one window
  int32_t windows = 2;             // of each text, at most
  int32_t needles = 12;            // windows with a needle; 0: none
  BackendOptions backend;
};

// Of one text, or the mean over all: geometric of perplexities.
struct HeldOutScore {
  std::string text;                // the file's name; empty: of all
  double full_perplexity = 0.0;    // with full attention; HeldOutResult::as_trained: with its own
  double sparse_perplexity = 0.0;  // 0: the model has no sparse attention
  double head_density = 1.0;       // of the sparse decode rows
  double union_density = 1.0;
};

struct HeldOutResult {
  HeldOutScore all;
  std::vector<HeldOutScore> texts;
  bool sparse = false;  // whether the model has sparse attention
  // By training's own forward pass, with the attention that the model was trained with: the server
  // does not run it.
  bool as_trained = false;
  std::optional<CacheShares> caches;  // of native sparse attention, over the scored rows
  int64_t tokens = 0;                 // scored, of all texts
  int32_t needles = 0;                // windows
  int32_t full_hits = 0;
  int32_t sparse_hits = 0;
};

class HeldOut {
 public:
  // Cuts the windows. InvalidArgument for texts that fill none; errors of TextSource. The tokenizer
  // must outlive it.
  static absl::StatusOr<std::unique_ptr<HeldOut>> Create(const HeldOutOptions& options,
                                                         const Tokenizer& tokenizer);

  // `full_only`: without sparse attention, as of the dense original. `progress` may be empty.
  // Errors of the backend and the model.
  absl::StatusOr<HeldOutResult> Measure(
      const TensorSource& model, bool full_only,
      const std::function<void(int64_t done, int64_t total)>& progress) const;

  // By training's own forward pass. A needle is found if every token of its answer is the most
  // likely one. RESOURCE_EXHAUSTED for activations that do not fit the device; other errors of
  // TrainingModel.
  absl::StatusOr<HeldOutResult> MeasureAsTrained(const ModelSpec& spec, Parameters& parameters,
                                                 const StepSettings& settings) const;

  int32_t context() const { return options_.context; }
  // Rows of a window that are fed as a prompt; the others decode.
  int32_t prefill() const { return options_.context / 8; }
  int64_t tokens() const;  // that a measurement scores
  // [context + 1] tokens each, of all texts.
  const std::vector<std::vector<int32_t>>& windows() const { return windows_; }

 private:
  HeldOut(const HeldOutOptions& options, const Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer) {}
  absl::Status Cut();

  HeldOutOptions options_;
  const Tokenizer& tokenizer_;
  std::vector<std::vector<int32_t>> windows_;
  std::vector<size_t> begins_ = {0};  // of each text's windows, and the end of the last
  std::vector<NeedleWindow> needles_;
};

}  // namespace eta::training
