// The requests of one call, from what its message says to their ends: the profile that they name,
// the format that binds their answers, the tokens of their prompt, what they cost, the engine's
// queue, and the call's end when the last of them has its own. A call has one answer or several;
// what they share is done once.
//
// Five kinds of threads meet here: gRPC's (start, cancel), one of the profile cache where the
// request names a profile that is not in memory, one that waits for a format to be compiled, one
// that makes tokens of a text or chat, and the engine's step threads (events; of several answers
// from several devices at once). Whoever has the next of these to do keeps the object alive.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/lease.h"
#include "engine/base/mutex.h"
#include "engine/format/format_compiler.h"
#include "engine/front/engine.h"
#include "engine/request/answers/answer_format.h"
#include "grpcpp/server_context.h"
#include "service/calls/live_streams.h"
#include "service/calls/service_context.h"
#include "service/limits/tenant_ledger.h"
#include "service/telemetry/call_record.h"

namespace eta {

class GenerateCall : public LiveStream {
 public:
  // What a message asks for.
  struct Wish {
    Request request;      // without tenant, share, arrival and deadline; answer i's seed is i more
    int32_t answers = 1;  // at least 1
    std::string profile;  // reference
    std::string profile_field;           // that names it; empty: none is named
    std::optional<AnswerFormat> format;  // of all answers
  };

  // LiveStream. The tokens are those of the prompts, once they run, and one for each delta.
  int64_t kv_tokens() const override;
  void EndForMemory() override;

 protected:
  explicit GenerateCall(const ServiceContext& service);

  // Goes on with what the message asks for, for an admitted tenant. Called once. On an error the
  // caller ends the call, after EndWait.
  absl::Status Begin(const grpc::ServerContextBase& context, const Tenant& tenant, Wish wish);
  // Ends all answers soon, from any thread, also before Begin. `for_deadline`: that is why.
  void Cancel(bool for_deadline);
  // Whether it waited for a profile, a format or tokens; it does not any more. Whoever is told so
  // goes on with it.
  bool EndWait();

  const ServiceContext& service() const { return service_; }
  int32_t answers() const { return static_cast<int32_t>(answers_.size()); }
  // Set where the call named no mode and the server has a default profile; known before any event.
  std::optional<DefaultProfileUse> default_profile() const { return default_profile_; }

  // What the call's reactor has for it.
  virtual std::shared_ptr<GenerateCall> Self() = 0;
  virtual CallRecord& call_record() = 0;
  virtual TenantLedger::Lease& call_lease() = 0;
  virtual bool ReaderFull() const = 0;
  virtual void EndCall(const absl::Status& status) = 0;

  // The events of answer `i`, in their order; of several answers on several threads.
  virtual void OnStarted(int32_t i, StartedEvent event) = 0;
  virtual void OnPrefill(int32_t i, PrefillEvent event) = 0;
  virtual void OnDelta(int32_t i, DeltaEvent event) = 0;
  virtual void OnFinished(int32_t i, const FinishedEvent& event) = 0;
  // The prompt as tokens, before any event.
  virtual void OnPrompt(const PreparedRequest& /*prepared*/) {}
  // The answer was cancelled, or the whole call before its answers were queued. True: that is a
  // good end for it.
  virtual bool OnCancelled(int32_t /*i*/, const FinishedEvent& /*so_far*/) { return false; }

 private:
  // What one answer has of the engine. Lives in the call, and keeps it alive in the engine's hands.
  class Answer final : public EventSink {
   public:
    Answer(GenerateCall& call, int32_t i) : call_(call), i_(i) {}
    void OnStarted(StartedEvent event) override { call_.Started(i_, std::move(event)); }
    void OnPrefill(PrefillEvent event) override { call_.OnPrefill(i_, std::move(event)); }
    void OnDelta(DeltaEvent event) override { call_.Delta(i_, std::move(event)); }
    void OnFinished(FinishedEvent event) override { call_.Finished(i_, std::move(event)); }
    void OnFailed(absl::Status status, FinishedEvent so_far) override {
      call_.Failed(i_, std::move(status), std::move(so_far));
    }
    bool Congested() const override { return call_.ReaderFull(); }

   private:
    GenerateCall& call_;
    const int32_t i_;
  };

  absl::Status ResolveProfile(const Tenant& tenant, const Wish& wish);
  absl::Status ResolveNamed(const Tenant& tenant, const std::string& reference,
                            const std::string& field);
  absl::Status ResolveDefault(const Tenant& tenant, const std::string& reference);
  absl::Status SubmitWith(std::shared_ptr<const ThresholdProfile> profile);
  // Checks and pays for the request and goes on to MakePrompt, on another thread if its format has
  // to be compiled.
  absl::Status Submit();
  absl::Status AwaitFormat(AnswerFormat format);
  absl::StatusOr<std::shared_ptr<const CompiledFormat>> Compile(const std::string& tenant,
                                                                const AnswerFormat& format,
                                                                Clock::time_point deadline);
  // What is wrong with the format, with the field that asked for it.
  absl::Status OfFormat(const absl::Status& status) const;
  // Records how long it waited for its format; of whoever ended the wait.
  void NoteCompiled();
  // Goes on to Queue, a text's or chat's on another thread.
  absl::Status MakePrompt();
  absl::Status AwaitTokenizer();
  // Makes tokens of the prompt, pays for them and queues a request for each answer.
  absl::Status Queue();
  absl::Status QueueAnswers(PreparedRequest prepared);
  void BeginWait();
  bool Waits();

  void Started(int32_t i, StartedEvent event);
  void Delta(int32_t i, DeltaEvent event);
  void Finished(int32_t i, FinishedEvent event);
  void Failed(int32_t i, absl::Status status, FinishedEvent so_far);
  // One has its end; with the last one the call has it.
  void AnswerEnded(const absl::Status& status, FinishedEvent outcome);
  void EndAll(const absl::Status& status, FinishedEvent outcome);
  void CancelQueued();
  // Why it ends, cancelled: that its deadline has passed, as the engine would say, or `status`.
  absl::Status DeadlineOr(absl::Status status) const;
  absl::Status WhyCancelled(absl::Status status) const;

  const ServiceContext& service_;
  const Clock::time_point arrival_ = Clock::now();
  Request request_;                                   // until it is submitted
  std::optional<AnswerFormat> format_;                // until it is compiled
  bool format_of_tools_ = false;                      // nobody has asked for it by name
  std::optional<Clock::time_point> compiling_since_;  // while it waits for that
  std::vector<Answer> answers_;                       // does not change once it is filled
  int64_t text_cost_ = 0;                             // tokens, of what is compiled too
  std::optional<DefaultProfileUse> default_profile_;  // before it is submitted
  Lease place_;                                       // among the live streams
  std::atomic<int64_t> kv_tokens_ = 0;
  std::atomic<bool> ends_for_memory_ = false;
  std::atomic<bool> deadline_passed_ = false;

  Mutex mutex_;
  bool waits_ GUARDED_BY(mutex_) = false;  // for its profile, its format or who makes tokens
  bool cancelled_ GUARDED_BY(mutex_) = false;
  std::vector<std::optional<uint64_t>> handles_ GUARDED_BY(mutex_);
  int32_t left_ GUARDED_BY(mutex_) = 0;                      // answers without an end
  absl::Status failure_ GUARDED_BY(mutex_);                  // of the first that failed
  std::optional<FinishedEvent> outcome_ GUARDED_BY(mutex_);  // of all that have ended
  // Tokens of the prompts that were computed, once they ran, and those that were generated.
  int64_t used_ GUARDED_BY(mutex_) = 0;
};

}  // namespace eta
