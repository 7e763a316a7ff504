// The identity of a full block of a prompt: everything that its keys and values depend on.
//
// K and V of deeper layers depend on how earlier attention ran. So the root of the chain holds the
// RoPE base and, where the model has a gate, the source of its thresholds, their offset and whether
// special keys are tempered; and the tenant too. Without a gate nothing of thresholds is in it:
// they decide what a decode row reads, and full prefill reads every key. So z, floor, pinned and
// sink blocks and reads are in it with sparse prefill alone, whatever the gate: then they decide
// what a prompt's rows attend to. The model is not, because a process has one. The hash is SHA-256:
// nobody can construct a prompt that is served another one's blocks.
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

// Keys of the full blocks of `prompt`, in order; none if the library refuses to hash. `gate` is the
// model's.
std::vector<PrefixKey> PrefixKeys(const std::string& tenant, float rope_theta,
                                  const ResolvedAttention& attention, Gate gate,
                                  std::span<const int32_t> prompt, int32_t block_size);

// How many blocks of its prompt a request may share. Never the block of the prompt's last token,
// whose logits are wanted; none if the logits of all prompt tokens are wanted.
int32_t MostSharedBlocks(const Request& request, int64_t prompt_tokens, int32_t block_size);

}  // namespace eta
