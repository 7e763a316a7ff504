// What one device's block pool tells a KvEventLog, a step at a time.
//
// Not thread-safe: the step thread's. It does not wait for who reads the log meanwhile: what cannot
// be handed over after a step goes with the next one's, or when the thread would rest anyway. So a
// step pays a copy of the tokens of its blocks, and nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/batching/kv_events/kv_event_log.h"
#include "engine/batching/prefix_key.h"

namespace eta {

class KvEventRecorder {
 public:
  // Above so many changes a step waits for the log rather than that more pile up.
  static constexpr size_t kMaxPending = size_t{1} << 14;

  // `served` names what is the same for all blocks of this process and changes keys and values: the
  // model and its number formats. `windows`: of the groups of its layers, as LayerGroups has them.
  KvEventRecorder(std::shared_ptr<KvEventLog> log, std::string_view served,
                  std::vector<int32_t> windows = {0});

  // A block with these tokens can be found under `key` for a group of layers; `parent`: the key of
  // the block before it in its prompt, null of the first.
  void Stored(const PrefixKey& key, const PrefixKey* parent, std::span<const int32_t> tokens,
              int32_t group = 0);
  void Removed(const PrefixKey& key, int32_t group = 0);
  // After the removal of all.
  void Cleared();

  // Hands the changes to the log. `wait`: also where somebody else is at it now.
  void Flush(bool wait);

 private:
  int64_t HashOf(const PrefixKey& key) const;

  const std::shared_ptr<KvEventLog> log_;
  const uint64_t salt_;
  const std::vector<int32_t> windows_;
  std::vector<KvEventLog::Change> pending_;
};

}  // namespace eta
