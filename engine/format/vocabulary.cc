#include "engine/format/vocabulary.h"

#include <algorithm>

namespace eta {

bool FormatVocabulary::IsSpecial(int32_t id) const {
  return std::binary_search(special.begin(), special.end(), id);
}

bool FormatVocabulary::IsEnd(int32_t id) const {
  return std::find(ends.begin(), ends.end(), id) != ends.end();
}

std::optional<int32_t> FormatVocabulary::SpecialNamed(std::string_view text) const {
  for (const int32_t id : special) {
    if (Bytes(id) == text) return id;
  }
  return std::nullopt;
}

std::string_view FormatVocabulary::Bytes(int32_t id) const {
  const bool known = id >= 0 && static_cast<size_t>(id) < tokens.size();
  return known ? std::string_view(tokens[static_cast<size_t>(id)]) : std::string_view();
}

FormatVocabulary FormatVocabularyOf(const Tokenizer& tokenizer) {
  FormatVocabulary vocabulary{.size = tokenizer.vocab_size(),
                              .special = tokenizer.special_ids(),
                              .ends = tokenizer.eos_ids()};
  vocabulary.tokens.reserve(static_cast<size_t>(vocabulary.size));
  for (int32_t id = 0; id < vocabulary.size; ++id) {
    vocabulary.tokens.emplace_back(tokenizer.ShownBytes(id));
  }
  return vocabulary;
}

}  // namespace eta
