#include "engine/base/random.h"

namespace eta {
namespace {

constexpr uint32_t kMultipliers[2] = {0xD2511F53u, 0xCD9E8D57u};
constexpr uint32_t kWeyl[2] = {0x9E3779B9u, 0xBB67AE85u};

}  // namespace

std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(kMultipliers[0]) * counter[0];
    const uint64_t b = static_cast<uint64_t>(kMultipliers[1]) * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += kWeyl[0];
    key[1] += kWeyl[1];
  }
  return counter;
}

double UniformDraw(uint64_t seed, uint64_t index) {
  const auto bits = Philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
                           {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t word = (static_cast<uint64_t>(bits[0]) << 32) | bits[1];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

}  // namespace eta
