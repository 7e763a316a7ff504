// The decoder of a tokenizer.json: what a token reads as.
//
// An answer is told token by token, so a token must read the same whatever follows, and may depend
// on what came before by whether anything did. Decoders that need more are refused by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace eta {

// Immutable; thread-safe.
class TokenDecoder {
 public:
  class Step;

  // INVALID_ARGUMENT and UNIMPLEMENTED as MakeNormalizers. Null: tokens with spaces between them.
  static absl::StatusOr<TokenDecoder> Make(const nlohmann::json& root);

  TokenDecoder(TokenDecoder&&) noexcept;
  ~TokenDecoder();

  // Bytes that a token adds to a text, from how the vocabulary spells it; `first`: to an empty one.
  // INVALID_ARGUMENT where a pattern exceeds its limits.
  absl::StatusOr<std::string> Decode(std::string_view spelled, bool first) const;

 private:
  TokenDecoder();

  std::vector<std::unique_ptr<const Step>> steps_;
};

}  // namespace eta
