// Any bytes as a structural tag: refused in a readable sentence, or JSON that names special tokens
// by their ids.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "engine/format/structural_tag.h"
#include "nlohmann/json.hpp"
#include "tests/testing/engine/fake_library.h"
#include "tests/testing/fuzz/checked_error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const eta::FormatVocabulary vocabulary = eta::testing::SmallVocabulary();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tag = eta::ReadStructuralTag(text, vocabulary);
  if (!tag.ok()) {
    eta::fuzz::RequireReadable(tag.status());
    return 0;
  }
  eta::fuzz::Require(nlohmann::json::accept(tag->json));
  eta::fuzz::Require(tag->tokens.empty() || tag->by_tokens);
  eta::fuzz::Require(std::ranges::is_sorted(tag->tokens));
  for (const int32_t token : tag->tokens) eta::fuzz::Require(vocabulary.IsSpecial(token));
  return 0;
}
