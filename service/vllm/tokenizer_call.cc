#include "service/vllm/tokenizer_call.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr size_t kPieceBytes = 64 << 10;
constexpr std::chrono::milliseconds kPlaceRetry{1000};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* TokenizerCall::Start(
    grpc::CallbackServerContext* context, const ServiceContext& service,
    const TokenizerOffer& offer, std::function<void()> on_done) {
  const bool room = ++offer.calls <= TokenizerOffer::kMaxCalls;
  auto leave = [&offer, on_done = std::move(on_done)] {
    --offer.calls;
    on_done();
  };
  const std::shared_ptr<TokenizerCall> call(new TokenizerCall(context, service, std::move(leave)));
  call->KeepAlive();
  call->End(CatchOutOfMemory([&] {
    if (room) return call->Send(service, offer);
    return MakeError(absl::StatusCode::kResourceExhausted,
                     "too many calls read the tokenizer at once",
                     {.reason = "QUEUE_FULL", .retry_after = kPlaceRetry});
  }));
  return call.get();
}

absl::Status TokenizerCall::Send(const ServiceContext& service, const TokenizerOffer& offer) {
  RETURN_IF_ERROR(Admit(context(), service, {Role::kGenerate, Role::kRoute}, record()).status());
  RETURN_IF_ERROR(offer.bundle.status());
  const std::string& zip = offer.bundle->zip;
  for (size_t begin = 0; begin < zip.size(); begin += kPieceBytes) {
    Chunk chunk;
    chunk.set_data(zip.substr(begin, kPieceBytes));
    if (begin + kPieceBytes >= zip.size()) chunk.set_sha256(offer.bundle->sha256);
    Enqueue(std::move(chunk));
  }
  return absl::OkStatus();
}

}  // namespace eta
