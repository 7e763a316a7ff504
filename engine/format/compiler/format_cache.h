// Compiled formats by tenant and digest, the least recently used forgotten first.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "engine/format/answer_guide.h"

namespace eta {

// Not thread-safe.
class FormatCache {
 public:
  explicit FormatCache(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Null where it is not kept.
  std::shared_ptr<const CompiledFormat> Find(const std::string& key);
  // Whatever is larger than all of the cache is not kept.
  void Insert(const std::string& key, std::shared_ptr<const CompiledFormat> format);

  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const CompiledFormat> format;
    int64_t bytes;
  };
  void Forget(std::list<Entry>::iterator entry);

  const int64_t max_bytes_;
  int64_t bytes_ = 0;
  std::list<Entry> entries_;  // the most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
};

}  // namespace eta
