// What tables are measured on: one model on one backend, texts, and how much of each to take.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/runtime/runner.h"
#include "calibration/evaluation/runtime/runtime.h"
#include "calibration/evaluation/text/text_source.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {

struct TableSettings {
  bool quick = false;              // small samples: the whole report in ten minutes on two cores
  std::vector<std::string> texts;  // files; empty: those of `data`
  std::string data = "tests/evaluation";  // folder of the evaluation sets
  uint64_t seed = 1;
  int32_t context = 0;    // tokens of a window; 0: the table's own
  int32_t samples = 0;    // windows, or trials of each kind; 0: the table's own
  int32_t questions = 0;  // of a task; 0: the table's own
  // Forms of the model that table `weights` measures (TableBench::LoadForm); empty: its own.
  std::vector<std::string> against;
};

struct BenchText {
  std::string name;  // of the file, without folder and endings
  std::string path;
};

// Not thread-safe.
class TableBench {
 public:
  // Errors of the model, the backend or its tokenizer.
  static absl::StatusOr<std::unique_ptr<TableBench>> Load(const RuntimeOptions& runtime,
                                                          const TableSettings& settings);

  // The same settings and backend, but of another form of the model: its weights rounded at load to
  // the format `form`, or else the file or folder of this name, its weights as they are. Errors of
  // Load. Whether it is the same model is not checked.
  absl::StatusOr<std::unique_ptr<TableBench>> LoadForm(const std::string& form) const;

  const TableSettings& settings() const { return settings_; }
  bool quick() const { return settings_.quick; }
  // `whole`, or of a quick run `small`; a number given by the user before either.
  int32_t Samples(int32_t whole, int32_t small) const;
  int32_t Questions(int32_t whole, int32_t small) const;
  // Likewise, and no more than the model's context.
  int32_t Context(int32_t whole, int32_t small) const;

  Runtime& runtime() { return *runtime_; }
  const ModelConfig& config() const { return runtime_->config(); }
  RivalBackend& rivals() { return runtime_->rivals(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

  // The cache's; of another block size or kind of index, where given.
  KvGeometry Geometry(std::optional<int32_t> block_size = std::nullopt,
                      std::optional<IndexKind> index = std::nullopt) const;
  // The runner must not outlive this object. One at a time. `around`: a ForwardingBackend around
  // runtime().shared_backend() that the rows are to run through, to look at what ops are given; it
  // must outlive the runner.
  absl::StatusOr<std::unique_ptr<SequenceRunner>> MakeRunner(const KvGeometry& geometry,
                                                             int32_t context,
                                                             Backend* around = nullptr);
  // A way of attending by its name (evaluated_attention.h).
  absl::StatusOr<EvaluatedAttention> Attention(const std::string& name, const KvGeometry& geometry);

  // The texts that tables of perplexity and diagnostics take: the user's, or wikitext-2 and the
  // four domains.
  std::vector<BenchText> Texts() const;
  // Windows of `context` predictions, evenly spaced over a text, each [context + 1].
  absl::StatusOr<std::vector<std::vector<int32_t>>> Windows(const BenchText& text, int32_t context,
                                                            int32_t windows) const;

  // What numbers hold for, as settings of a table: the model's fingerprint, and the defaults that
  // it attends with.
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Provenance();

  // Hears how far the table is, `done` of `total` in the table's own units; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;
  void Progress(int64_t done, int64_t total) const {
    if (progress) progress(done, total);
  }

 private:
  TableBench() = default;

  RuntimeOptions options_;
  TableSettings settings_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace eta
