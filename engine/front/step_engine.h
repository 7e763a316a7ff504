// The engine on one device: a queue in front of the dispatcher, and the thread that empties it.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/format/format_compiler.h"
#include "engine/front/chat_prompts.h"
#include "engine/front/dispatcher.h"
#include "engine/front/engine.h"
#include "engine/front/request_intake.h"
#include "engine/front/submission_queue.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"
#include "engine/request/shadow/live_mass.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {

class StepEngine final : public Engine {
 public:
  // Loads the model onto `backend`, reserves the KV cache and starts the step thread. Errors of
  // Model::Load, Tokenizer::Load, ChatPrompts::Create and, on a GPU, WarmUp; INVALID_ARGUMENT for
  // options that make no sense; RESOURCE_EXHAUSTED, with the bytes wanted and free, where the
  // device's memory is too small.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        const Checkpoint& checkpoint,
                                                        std::unique_ptr<Backend> backend,
                                                        Observer* observer = nullptr,
                                                        std::shared_ptr<LiveMass> live_mass = {});
  ~StepEngine() override;

  const EngineInfo& info() const override { return info_; }
  const Limits& limits() const override { return options_.limits; }
  FormatCompiler& formats() override { return *formats_; }
  absl::StatusOr<int64_t> Check(const Request& request) const override;
  absl::StatusOr<PreparedRequest> Prepare(Request request) const override;
  absl::StatusOr<uint64_t> Submit(PreparedRequest request,
                                  std::shared_ptr<EventSink> sink) override;
  absl::StatusOr<uint64_t> SubmitPass(Pass pass, std::shared_ptr<PassSink> sink) override;
  absl::StatusOr<std::vector<int32_t>> Tokenize(std::string_view text) const override;
  absl::StatusOr<Detokenized> Detokenize(std::span<const int32_t> ids,
                                         bool special_tokens) const override;
  void Cancel(uint64_t handle) override;
  void ForgetPrefixes() override { queue_.ForgetPrefixes(); }
  void Drain(Clock::time_point deadline) override;
  EngineSnapshot Snapshot() const override;
  std::vector<TenantQueue> Tenants() const override;

 private:
  StepEngine(const EngineOptions& options, std::unique_ptr<Backend> backend, Observer* observer,
             std::shared_ptr<LiveMass> live_mass);
  bool OnGpu() const { return backend_->name() == "cuda"; }
  absl::Status Load(const Checkpoint& checkpoint);
  absl::Status LoadText(const Checkpoint& checkpoint);
  absl::Status ReserveCache();
  absl::StatusOr<int64_t> PoolBytes(const KvGeometry& geometry) const;

  absl::Status CheckPool(int64_t tokens, const std::string& what) const;

  void Loop();
  void Deliver(SubmissionQueue::Submissions& submissions);
  // The step thread's last act when it has no memory: tells everybody, so that the process can end.
  void EndForMemory(SubmissionQueue::Submissions submissions);
  // How things stand; for the step thread, and for Load before that starts.
  SubmissionQueue::State Sample();

  EngineOptions options_;  // its zeros replaced by what they stand for
  Observer* const observer_;
  EngineInfo info_;

  // Built by Load, then used by the step thread alone. Callers read what does not change: the
  // tokenizer, the chats' template, the intake and the cache's geometry.
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatPrompts> chats_;
  std::unique_ptr<RequestIntake> intake_;
  std::unique_ptr<FormatCompiler> formats_;
  std::unique_ptr<KvCache> cache_;
  const std::shared_ptr<LiveMass> live_mass_;
  std::unique_ptr<KvEventRecorder> recorder_;  // null: nobody asks for the cache's events
  std::unique_ptr<Dispatcher> dispatcher_;
  EngineSnapshot snapshot_;
  std::thread thread_;

  SubmissionQueue queue_;
};

}  // namespace eta
