#include "engine/chat/tools/call_id.h"

#include <array>
#include <cstddef>

#include "engine/base/random.h"

namespace eta {

std::string CallId(uint64_t seed, int32_t prompt_tokens, int32_t index, bool is_short) {
  constexpr char kAlphabet[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  constexpr uint32_t kLetters = sizeof(kAlphabet) - 1;
  constexpr uint32_t kStream = 0x63616c6c;  // apart from the draws of tokens
  const size_t size = is_short ? 9 : 24;
  std::string id = is_short ? "" : "call_";
  for (size_t i = 0; i < size; ++i) {
    const std::array<uint32_t, 4> drawn =
        Philox({static_cast<uint32_t>(index), static_cast<uint32_t>(prompt_tokens),
                static_cast<uint32_t>(i / 4), kStream},
               {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    id += kAlphabet[drawn[i % 4] % kLetters];
  }
  return id;
}

}  // namespace eta
