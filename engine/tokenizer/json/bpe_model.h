// Byte-pair encoding by a list of merges, as Hugging Face's tokenizers does it (model type BPE).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/json/tokenizer_file.h"
#include "engine/tokenizer/pair_table.h"
#include "engine/tokenizer/symbol_merger.h"
#include "engine/tokenizer/text/unicode.h"
#include "engine/tokenizer/word_cache.h"

namespace eta {

struct BpeOptions {
  bool byte_level = false;  // the vocabulary spells bytes (byte_alphabet.h)
  bool byte_fallback =
      false;              // a character outside of it becomes "<0x41>", one token for each byte
  bool fuse_unk = false;  // characters that follow one another make one unknown token
  bool ignore_merges = false;  // a piece that is a token is that token, whatever merges say
  std::optional<std::string> unk_token;  // for other characters; absent: no text has them
  std::vector<bool> never_made;          // by id; ids past its end are made from text
};

// Ids by how the vocabulary spells them.
using VocabularyIds = std::unordered_map<std::string_view, int32_t>;

// INVALID_ARGUMENT for a token or an id that is there twice.
absl::StatusOr<VocabularyIds> IndexVocabulary(const TokenizerTables& tables);

// Whether a token of the vocabulary is what a text is first cut into: one character, of a
// byte-level vocabulary one byte.
bool IsUnit(std::string_view spelled, bool byte_level);

// What encoding needs, kept from piece to piece and from text to text. Not thread-safe.
struct BpeScratch {
  explicit BpeScratch(bool with_cache) {
    if (with_cache) cache.emplace();
  }

  SymbolMerger merger;
  std::optional<WordCache> cache;
};

// Immutable; thread-safe.
class BpeModel {
 public:
  // INVALID_ARGUMENT for merges that name what the vocabulary does not
  // have, or that make nothing longer (so that no merge can lead back to its own parts), and for an
  // unk_token outside the vocabulary.
  static absl::StatusOr<std::unique_ptr<const BpeModel>> Make(const TokenizerTables& tables,
                                                              const VocabularyIds& vocabulary,
                                                              BpeOptions options);

  // Appends the ids of a piece of text, none of them of options.never_made: starting from single
  // characters (bytes of a byte-level vocabulary), the two neighbours that the earliest merge names
  // become one, the leftmost first, until no merge names any. Time n log n. Returns the place of
  // the first of them that no token stands for; then what was appended counts for nothing.
  [[nodiscard]] std::optional<size_t> Encode(std::string_view piece, BpeScratch& scratch,
                                             std::vector<int32_t>& ids) const;

  // Bytes of a piece that one id stands for at most; 0: any number.
  size_t max_token_bytes() const { return max_token_bytes_; }
  const BpeOptions& options() const { return options_; }

 private:
  // What is looked up first: a character, or a byte.
  struct Unit {
    char32_t code;
    size_t size;
    int32_t id;  // -1: the vocabulary does not have it
  };

  explicit BpeModel(BpeOptions options) : options_(std::move(options)) {}
  absl::Status AddTokens(const TokenizerTables& tables, const VocabularyIds& vocabulary);
  absl::Status AddMerges(const TokenizerTables& tables, const VocabularyIds& vocabulary);
  bool IsNeverMade(int32_t id) const;
  void AddUnit(std::string_view token, int32_t id);

  Unit UnitAt(std::string_view text, size_t at) const;
  // The end of the part that begins at `at`, over whose end no merge reaches.
  size_t PartEnd(std::string_view piece, size_t at) const;
  // Appends what the cache has kept of `text`; false: nothing.
  bool TakeKept(std::string_view text, const BpeScratch& scratch, std::vector<int32_t>& ids) const;
  // Both return the place in `part` that no token stands for.
  std::optional<size_t> Merge(std::string_view part, BpeScratch& scratch,
                              std::vector<int32_t>& ids) const;
  std::optional<size_t> AddSymbols(std::string_view part, SymbolMerger& merger) const;
  bool AddBytes(std::string_view spelled, SymbolMerger& merger) const;

  const BpeOptions options_;
  std::unordered_map<std::string, int32_t> words_;  // tokens as they stand in a text
  std::array<int32_t, 256> small_{};                // ids of ASCII's characters, or of all bytes
  std::unordered_map<char32_t, int32_t> characters_;
  std::array<int32_t, 256> byte_ids_{};  // "<0x41>"; -1: not there
  bool has_all_bytes_ = false;
  int32_t unk_id_ = -1;
  PairTable merges_;
  PairTable joints_;  // pairs of units across which a merge reaches
  bool cuts_at_unknown_ = false;
  size_t max_token_bytes_ = 0;
};

}  // namespace eta
