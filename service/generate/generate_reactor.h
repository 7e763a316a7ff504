// One Generate call of eta.v1: reads the message, and writes the engine's events to the client as
// fast as the client reads.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "engine/chat/tools/answer_reader.h"
#include "eta/v1/generate.pb.h"
#include "service/generate/generate_stream.h"

namespace eta {

class GenerateReactor final : public GenerateStream<v1::GenerateResponse> {
 public:
  // Begins the call. `on_done` runs once, last of all, when gRPC has let go of the call.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& message,
                                                           const ServiceContext& service,
                                                           std::function<void()> on_done);

 private:
  using GenerateStream::GenerateStream;

  absl::Status Read(const grpc::ByteBuffer& message);
  void OnPrompt(const PreparedRequest& prepared) override;
  void OnStarted(int32_t i, StartedEvent event) override;
  void OnPrefill(int32_t i, PrefillEvent event) override;
  void OnDelta(int32_t i, DeltaEvent event) override;
  void OnFinished(int32_t i, const FinishedEvent& event) override;
  bool Merge(v1::GenerateResponse& last, const v1::GenerateResponse& next) const override;

  std::optional<AnswerReader::Options> plan_;  // absent: the answer is not read; until it starts
  std::optional<AnswerReader> reader_;         // from then on
};

}  // namespace eta
