#include "service/kv_events/kv_event_encoding.h"

#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMedium = "GPU";

Json HashOf(int64_t hash) {
  return static_cast<uint64_t>(hash);
}

class EventList {
 public:
  explicit EventList(KvEventEncoding encoding) : encoding_(encoding) {}

  // The event at `next`, with those behind it that belong to it; the first that does not.
  size_t Add(const std::vector<KvEvent>& events, size_t next) {
    const size_t end = EndOfRun(events, next);
    Json hashes = Json::array(), tokens = Json::array();
    for (size_t i = next; i < end && events[i].block != nullptr; ++i) {
      hashes.push_back(HashOf(events[i].block->hash));
      for (const int32_t token : events[i].block->tokens) tokens.push_back(token);
    }
    const KvEvent& first = events[next];
    if (first.kind == KvEvent::Kind::kCleared) {
      Add("AllBlocksCleared", {});
    } else if (first.kind == KvEvent::Kind::kRemoved) {
      Fields fields = {{"block_hashes", std::move(hashes)}, {"medium", kMedium}};
      if (first.block->group) fields.emplace_back("group_idx", first.block->group->index);
      Add("BlockRemoved", fields);
    } else {
      const auto& parent = first.block->parent;
      Fields fields = {{"block_hashes", std::move(hashes)},
                       {"parent_block_hash", parent ? HashOf(*parent) : Json()},
                       {"token_ids", std::move(tokens)},
                       {"block_size", first.block->tokens.size()},
                       {"lora_id", Json()},
                       {"medium", kMedium},
                       {"lora_name", Json()}};
      if (first.block->group) AddGroup(*first.block->group, fields);
      Add("BlockStored", fields);
    }
    return end;
  }

  Json Release() { return std::move(list_); }

 private:
  using Fields = std::vector<std::pair<const char*, Json>>;

  void AddGroup(const KvGroup& group, Fields& fields) const {
    if (encoding_ == KvEventEncoding::kArray) fields.emplace_back("extra_keys", Json());
    fields.emplace_back("group_idx", group.index);
    fields.emplace_back("kv_cache_spec_kind", SpecKind(group));
    fields.emplace_back("kv_cache_spec_sliding_window",
                        group.window > 0 ? Json(group.window) : Json());
  }

  void Add(const char* type, const Fields& fields) {
    if (encoding_ == KvEventEncoding::kArray) {
      Json event = Json::array({type});
      for (const auto& [name, value] : fields) event.push_back(value);
      return list_.push_back(std::move(event));
    }
    Json event = {{"type", type}};
    for (const auto& [name, value] : fields) event[name] = value;
    list_.push_back(std::move(event));
  }

  const KvEventEncoding encoding_;
  Json list_ = Json::array();
};

}  // namespace

std::string EncodeKvEvents(const KvEventBatch& batch, KvEventEncoding encoding) {
  EventList events(encoding);
  for (size_t next = 0; next < batch.events.size();) next = events.Add(batch.events, next);
  const double seconds = std::chrono::duration<double>(batch.time.time_since_epoch()).count();
  Json message = Json::array();
  message.push_back(seconds);
  message.push_back(events.Release());
  message.push_back(nullptr);
  std::string bytes;
  Json::to_msgpack(message, bytes);
  return bytes;
}

}  // namespace eta
