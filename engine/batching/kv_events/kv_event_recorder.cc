#include "engine/batching/kv_events/kv_event_recorder.h"

#include <openssl/sha.h>

#include <utility>

namespace eta {
namespace {

uint64_t SaltOf(std::string_view served) {
  PrefixKey key;
  SHA256(reinterpret_cast<const uint8_t*>(served.data()), served.size(), key.digest.data());
  return PrefixKey::Hash()(key);
}

}  // namespace

KvEventRecorder::KvEventRecorder(std::shared_ptr<KvEventLog> log, std::string_view served,
                                 std::vector<int32_t> windows)
    : log_(std::move(log)), salt_(SaltOf(served)), windows_(std::move(windows)) {}

int64_t KvEventRecorder::HashOf(const PrefixKey& key) const {
  return static_cast<int64_t>(PrefixKey::Hash()(key) ^ salt_);
}

void KvEventRecorder::Stored(const PrefixKey& key, const PrefixKey* parent,
                             std::span<const int32_t> tokens, int32_t group) {
  auto block = std::make_shared<KvBlock>();
  block->hash = HashOf(key);
  if (parent != nullptr) block->parent = HashOf(*parent);
  block->tokens.assign(tokens.begin(), tokens.end());
  if (windows_.size() > 1) {
    block->group = {.index = static_cast<uint32_t>(group),
                    .window = static_cast<uint32_t>(windows_[static_cast<size_t>(group)])};
  }
  const int64_t hash = block->hash;
  pending_.push_back(
      {.kind = KvEvent::Kind::kStored, .hash = hash, .group = group, .block = std::move(block)});
}

void KvEventRecorder::Removed(const PrefixKey& key, int32_t group) {
  pending_.push_back(
      {.kind = KvEvent::Kind::kRemoved, .hash = HashOf(key), .group = group, .block = nullptr});
}

void KvEventRecorder::Cleared() {
  pending_.push_back({.kind = KvEvent::Kind::kCleared, .hash = 0, .group = 0, .block = nullptr});
}

void KvEventRecorder::Flush(bool wait) {
  if (pending_.empty()) return;
  if (wait || pending_.size() > kMaxPending) {
    log_->Append(pending_);
  } else {
    (void)log_->TryAppend(pending_);
  }
}

}  // namespace eta
