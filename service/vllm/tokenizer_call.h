// One GetTokenizer call: the archive in pieces of 64 KiB, the last with the archive's digest.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/calls/stream_reactor.h"
#include "service/vllm/convert_vllm.h"
#include "service/vllm/tokenizer_bundle.h"
#include "smg/grpc/common/common.pb.h"

namespace eta {

// What the calls of one listener share.
struct TokenizerOffer {
  // Each call holds the archive until its client has read it.
  static constexpr int kMaxCalls = 4;

  absl::StatusOr<TokenizerBundle> bundle = absl::UnavailableError("not there yet");
  mutable std::atomic<int> calls = 0;
};

class TokenizerCall final : public StreamReactor<::smg::grpc::common::GetTokenizerChunk> {
 public:
  // Begins the call. Both must outlive it. `on_done` as GenerateReactor::Start's.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                           const ServiceContext& service,
                                                           const TokenizerOffer& offer,
                                                           std::function<void()> on_done);

 private:
  using Chunk = ::smg::grpc::common::GetTokenizerChunk;

  TokenizerCall(grpc::CallbackServerContext* context, const ServiceContext& service,
                std::function<void()> on_done)
      : StreamReactor(context, service, "GetTokenizer", service.engine.limits().max_congestion,
                      std::move(on_done)) {
    record().service = kVllmEngine;
  }

  absl::Status Send(const ServiceContext& service, const TokenizerOffer& offer);
  bool Merge(Chunk& /*last*/, const Chunk& /*next*/) const override { return false; }
};

}  // namespace eta
