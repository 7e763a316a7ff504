// Where the prefix cache's events are published, and how.
#pragma once

#include <cstdint>
#include <string>

namespace eta {

// Both have been vLLM's, and readers differ in which they take: an event as a map with its type as
// a field (after 0.23), or as an array with its type first.
enum class KvEventEncoding : uint8_t { kMap, kArray };

struct KvEventOptions {
  std::string publish;  // tcp://host:port, "*" for every address of this host; empty: nowhere
  std::string replay;   // the same, for readers who missed events; empty: nowhere
  std::string topic;
  KvEventEncoding encoding = KvEventEncoding::kMap;
  bool allow_network = false;  // other hosts may reach these addresses
};

}  // namespace eta
