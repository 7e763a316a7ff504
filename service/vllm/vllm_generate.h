// One Generate call of vllm.grpc.engine: the same requests as eta.v1's, n of them, in that
// protocol's messages. Its end carries what was read as metadata (x-eta-...).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/generate/generate_stream.h"
#include "service/options/vllm_listen.h"
#include "service/vllm/convert_vllm.h"
#include "service/vllm/named_requests.h"

namespace eta {

// What the calls of one listener share.
struct VllmContext {
  const ServiceContext& service;
  std::string model_name;
  AttentionName attention;  // of requests that name none
  NamedRequests& requests;
};

class VllmGenerate final : public GenerateStream<vllm_pb::GenerateResponse>,
                           public AbortableRequest {
 public:
  // As GenerateReactor::Start. `vllm` must outlive the call.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& message,
                                                           const VllmContext& vllm,
                                                           std::function<void()> on_done);

  void Abort() override;

 private:
  // One of the answers, as far as it has come; of the thread that has its events.
  struct Part {
    vllm_pb::GenerateComplete complete;  // its ids and logarithms without stream only
    vllm_pb::InputLogProbs prompt;
    bool prompt_told = false;
  };

  VllmGenerate(grpc::CallbackServerContext* context, const VllmContext& vllm,
               std::function<void()> on_done)
      : GenerateStream(context, vllm.service, std::move(on_done)), vllm_(vllm) {}

  absl::Status Read(const grpc::ByteBuffer& message);
  absl::StatusOr<AttentionName> AttentionAsked() const;

  void OnPrompt(const PreparedRequest& prepared) override { first_id_ = prepared.prompt.front(); }
  void OnStarted(int32_t i, StartedEvent event) override;
  void OnPrefill(int32_t i, PrefillEvent event) override;
  void OnDelta(int32_t i, DeltaEvent event) override;
  void OnFinished(int32_t i, const FinishedEvent& event) override;
  bool OnCancelled(int32_t i, const FinishedEvent& so_far) override;
  void EndCall(const absl::Status& status) override;
  bool Merge(vllm_pb::GenerateResponse& last,
             const vllm_pb::GenerateResponse& next) const override {
    return eta::Merge(last, next);
  }

  bool TellsPrompt(Part& part);
  void Complete(int32_t i);
  void AddReadings();

  const VllmContext& vllm_;
  SamplingOptions sampling_;
  OutputOptions output_;
  bool stream_ = false;
  std::optional<int32_t> first_id_;  // of the prompt, once it has tokens
  std::vector<Part> parts_;
  Lease name_;
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> cut_ = false;  // an answer of it has no other end
};

}  // namespace eta
