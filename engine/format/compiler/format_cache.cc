#include "engine/format/compiler/format_cache.h"

#include <iterator>
#include <utility>

namespace eta {

std::shared_ptr<const CompiledFormat> FormatCache::Find(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->format;
}

void FormatCache::Insert(const std::string& key, std::shared_ptr<const CompiledFormat> format) {
  const auto bytes = static_cast<int64_t>(format->bytes() + sizeof(Entry) + 2 * key.size());
  if (const auto found = by_key_.find(key); found != by_key_.end()) Forget(found->second);
  if (bytes > max_bytes_) return;
  while (bytes_ + bytes > max_bytes_) Forget(std::prev(entries_.end()));
  entries_.push_front({.key = key, .format = std::move(format), .bytes = bytes});
  by_key_[key] = entries_.begin();
  bytes_ += bytes;
}

void FormatCache::Forget(std::list<Entry>::iterator entry) {
  bytes_ -= entry->bytes;
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

}  // namespace eta
