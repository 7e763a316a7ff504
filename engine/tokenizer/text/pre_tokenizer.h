// The pre-tokenizer of a tokenizer.json: how a text is cut into pieces, which are encoded each on
// its own. It is a chain of stages; each cuts the pieces of the one before it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/tokenizer/text/regex.h"

namespace eta {

struct TextPiece {
  std::string_view text;     // never empty
  bool begins_text = false;  // its first byte comes from the first byte of the whole text
};

// Takes a piece; valid during the call alone.
using PieceSink = absl::FunctionRef<void(TextPiece)>;

// What cutting one text needs. Not thread-safe.
struct CutRun {
  explicit CutRun(size_t text_bytes) : regex(text_bytes) {}

  RegexRun regex;
};

// Immutable; thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;

  // Whether all of a text is in its pieces, each byte once; if not, one byte of a piece may stand
  // for any number of bytes.
  virtual bool keeps_all() const { return true; }

  // Errors go to run.regex.status(); what comes after one counts for nothing.
  virtual void Cut(TextPiece piece, CutRun& run, PieceSink sink) const = 0;
};

using PreTokenizers = std::vector<std::unique_ptr<const PreTokenizer>>;

// Cuts a piece by all stages.
void CutByAll(std::span<const std::unique_ptr<const PreTokenizer>> stages, TextPiece piece,
              CutRun& run, PieceSink sink);

// What becomes of the matches of a pattern: Hugging Face's SplitDelimiterBehavior.
enum class MatchBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Hears matches and the text between them, from left to right, and hands on pieces.
class MatchSplitter {
 public:
  MatchSplitter(MatchBehavior behavior, TextPiece whole, PieceSink sink)
      : behavior_(behavior), whole_(whole), sink_(sink) {}

  // The next stretch, which begins where the last ended.
  void Add(size_t end, bool is_match);
  void Finish() { Put(held_, last_); }

 private:
  void Put(size_t begin, size_t end) {
    if (begin == end) return;
    sink_({.text = whole_.text.substr(begin, end - begin),
           .begins_text = whole_.begins_text && begin == 0});
  }

  const MatchBehavior behavior_;
  const TextPiece whole_;
  const PieceSink sink_;
  size_t held_ = 0;  // from here to last_: a piece that may still grow
  size_t last_ = 0;
  bool last_match_ = false;
  bool any_ = false;
};

}  // namespace eta
