// The identity of a full block of a prompt: everything that its keys and values depend on.
//
// K and V of deeper layers depend on how earlier attention ran. So the root of the chain holds the
// RoPE base, the source of the thresholds and the offset of the gate, and the tenant too. It leaves
// out z, floor and pinned blocks, because prefill reads every key, and the model, because a process
// has one. The hash is SHA-256: nobody can construct a prompt that is served another one's blocks.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "engine/request/request.h"

namespace eta {

struct PrefixKey {
  std::array<uint8_t, 32> digest{};
  bool operator==(const PrefixKey&) const = default;

  struct Hash {
    size_t operator()(const PrefixKey& key) const {
      size_t hash;
      std::memcpy(&hash, key.digest.data(), sizeof(hash));
      return hash;
    }
  };
};

// Keys of the full blocks of `prompt`, in order; none if the library refuses to hash.
std::vector<PrefixKey> PrefixKeys(const std::string& tenant, float rope_theta,
                                  const ResolvedAttention& attention,
                                  std::span<const int32_t> prompt, int32_t block_size);

}  // namespace eta
