#include "service/vllm/vllm_events.h"

#include <chrono>
#include <utility>

#include "engine/base/status_macros.h"
#include "service/calls/admission.h"
#include "service/calls/call_identity.h"
#include "service/vllm/convert_vllm.h"

namespace eta {
namespace {

constexpr char kMedium[] = "GPU";  // as over ZeroMQ (kv_event_encoding.h)

void AddRun(const std::vector<KvEvent>& events, size_t begin, size_t end,
            events_pb::KvCacheEvent& message) {
  if (events[begin].kind == KvEvent::Kind::kCleared) {
    message.mutable_cleared();
    return;
  }
  if (events[begin].kind == KvEvent::Kind::kRemoved) {
    events_pb::KvBlocksRemoved& removed = *message.mutable_removed();
    removed.set_tier(events_pb::KV_CACHE_TIER_DEVICE);
    removed.set_medium(kMedium);
    if (events[begin].block->group) removed.set_group_idx(events[begin].block->group->index);
    for (size_t i = begin; i < end; ++i) removed.add_block_hashes(events[i].block->hash);
    return;
  }
  events_pb::KvBlocksStored& stored = *message.mutable_stored();
  stored.set_tier(events_pb::KV_CACHE_TIER_DEVICE);
  stored.set_medium(kMedium);
  if (const auto& group = events[begin].block->group) {
    stored.set_group_idx(group->index);
    stored.set_kv_cache_spec_kind(SpecKind(*group));
    if (group->window > 0) stored.set_kv_cache_spec_sliding_window(group->window);
  }
  const auto& parent = events[begin].block->parent;
  if (parent) stored.set_parent_block_hash(*parent);
  for (size_t i = begin; i < end; ++i) {
    const KvBlock& block = *events[i].block;
    events_pb::KvBlock& added = *stored.add_blocks();
    added.set_block_hash(block.hash);
    added.set_block_size(static_cast<int32_t>(block.tokens.size()));
    added.mutable_token_ids()->Add(block.tokens.begin(), block.tokens.end());
  }
}

}  // namespace

events_pb::KvEventBatch ToMessage(const KvEventBatch& batch) {
  events_pb::KvEventBatch message;
  message.set_sequence_number(batch.sequence);
  message.set_timestamp(std::chrono::duration<double>(batch.time.time_since_epoch()).count());
  for (size_t begin = 0; begin < batch.events.size();) {
    const size_t end = EndOfRun(batch.events, begin);
    events_pb::KvCacheEvent& event = *message.add_events();
    event.set_event_id(batch.sequence);
    AddRun(batch.events, begin, end, event);
    begin = end;
  }
  if (batch.snapshot) {
    message.mutable_snapshot()->set_index(batch.snapshot->index);
    message.mutable_snapshot()->set_count(batch.snapshot->count);
    message.mutable_snapshot()->set_blocks(batch.snapshot->blocks);
  }
  return message;
}

VllmEvents::VllmEvents(grpc::CallbackServerContext* context, const ServiceContext& service,
                       std::function<void()> on_done)
    : StreamReactor(context, service, "SubscribeKvEvents", service.engine.limits().max_congestion,
                    std::move(on_done)),
      service_(service) {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmEvents::Start(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer& message,
                                                              const ServiceContext& service,
                                                              std::function<void()> on_done) {
  const std::shared_ptr<VllmEvents> reactor(new VllmEvents(context, service, std::move(on_done)));
  reactor->KeepAlive();
  const absl::Status begun = reactor->Begin(message);
  if (begun.ok()) {
    reactor->Pull();
  } else {
    reactor->EndOnce(begun);
  }
  return reactor.get();
}

// Who shows no credential is refused as a method that is not there: a gateway then goes on without
// events, while it repeats a call that was denied every few seconds for ever.
absl::Status VllmEvents::AdmitRouter() {
  const absl::Status admitted = Admit(context(), service_, {Role::kRoute}, record()).status();
  const bool shows_nothing =
      service_.unnamed != nullptr && record().credential == service_.unnamed->credential;
  if (!absl::IsPermissionDenied(admitted) || !shows_nothing) return admitted;
  return absl::UnimplementedError(
      "the prefix cache's events are not for callers without a credential here (--vllm_route)");
}

absl::Status VllmEvents::Begin(const grpc::ByteBuffer& message) {
  record().service = kVllmEngine;
  RETURN_IF_ERROR(AdmitRouter());
  ASSIGN_OR_RETURN(const auto request, ParseMessage<events_pb::SubscribeKvEventsRequest>(
                                           message, service_.options.max_message_bytes));
  if (service_.kv_events == nullptr) {
    return absl::UnimplementedError("this server has no prefix cache to tell of");
  }
  shown_ = KeptShown(ShownBy(context(), service_.identity.rules().tenant_header));
  const auto weak = std::weak_ptr(std::static_pointer_cast<VllmEvents>(this->shared_from_this()));
  const MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(subscription_,
                   service_.kv_events->Subscribe(request.start_sequence_number(), [weak] {
                     if (const auto self = weak.lock()) self->Pull();
                   }));
  SendInitialMetadata();  // a gateway waits for it, and the first event may be long in coming
  return absl::OkStatus();
}

void VllmEvents::Pull() {
  const absl::Status status = PullSome();
  if (!status.ok()) EndOnce(absl::IsDataLoss(status) ? ReadTooSlowly() : status);
}

absl::Status VllmEvents::PullSome() {
  const MutexLock lock(mutex_);
  if (subscription_ == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(StillAdmitted(shown_.Get(), service_, {Role::kRoute}).status());
  while (!Full()) {
    ASSIGN_OR_RETURN(const KvEventBatchPtr batch, subscription_->Next());
    if (batch == nullptr) break;
    Enqueue(ToMessage(*batch));
  }
  return absl::OkStatus();
}

// Whatever had no room has some now.
void VllmEvents::OnWriteDone(bool ok) {
  const auto self = this->shared_from_this();  // the last write may end the call
  StreamReactor::OnWriteDone(ok);
  if (ok) Pull();
}

void VllmEvents::OnCancel() {
  StreamReactor::OnCancel();
  EndOnce(WhyCancelled());
}

void VllmEvents::EndOnce(const absl::Status& status) {
  if (ended_.exchange(true)) return;
  {
    const MutexLock lock(mutex_);
    subscription_.reset();
  }
  End(status);
}

}  // namespace eta
