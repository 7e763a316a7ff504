// The inside of the engine without its thread: a dispatcher that a test moves step by step, under a
// clock of its own. So the test decides what happens between steps.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/front/dispatcher.h"
#include "engine/front/engine.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta::testing {

class ScriptedEngine {
 public:
  struct Options {
    std::string model_dir;
    int32_t num_blocks = 64;
    bool allow_nonfinite_weights = false;
    BatcherOptions batcher;
    DraftOptions drafts = {};
  };

  // Fails the test if the model cannot be loaded. `backend` must outlive the engine.
  ScriptedEngine(const Options& options, Backend& backend);
  ~ScriptedEngine();

  const ModelConfig& config() const { return model_->config(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Dispatcher& dispatcher() { return *dispatcher_; }

  // These calls take effect before the next step. A request's handle is its index in order of
  // submission.
  void Submit(Request request);
  void SubmitPass(Pass pass, std::shared_ptr<PassSink> sink);
  void Cancel(size_t handle) { dispatcher_->Cancel(handle); }
  void SetCongested(size_t handle, bool congested);

  // Runs one step. The clock advances by a second.
  absl::StatusOr<bool> Step();
  Clock::time_point now() const { return now_; }

  // Everything that each request's sink was told so far, one line per event, and that the observer
  // was told. Only times and block counts are left out.
  const std::vector<std::string>& events(size_t handle) const;
  const std::vector<std::string>& reports() const { return reports_; }
  std::vector<int32_t> ids(size_t handle) const;
  std::string text(size_t handle) const;
  // Of its log-probabilities, each to the bit.
  std::string logprobs(size_t handle) const;
  // How a request ended that has not failed; absent before that.
  const std::optional<FinishedEvent>& finished(size_t handle) const;
  // The error of a request; OK while it has none.
  const absl::Status& failure(size_t handle) const;
  size_t num_requests() const { return sinks_.size(); }
  int32_t preemptions() const { return preemptions_; }
  int32_t masks() const { return masks_; }  // of all steps
  // Of each step, the drafts that its rows made.
  const std::vector<int64_t>& drafts_made() const { return drafts_made_; }

 private:
  class Sink;
  class Watch;

  const DraftOptions drafts_;
  Clock::time_point now_ = Clock::now();
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvCache> cache_;
  std::vector<std::shared_ptr<Sink>> sinks_;
  std::vector<std::string> reports_;
  int32_t preemptions_ = 0;
  int32_t masks_ = 0;
  std::vector<int64_t> drafts_made_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

}  // namespace eta::testing
