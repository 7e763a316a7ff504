// Token ids in, one at a time; text out as soon as it is certain.
//
// Text is certain when it is made of whole characters and cannot become part of a stop string. All
// texts returned make up the decoded answer, cut where the first stop string ends; if several end
// there, the longest counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/utf8.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {

// One answer. Not thread-safe; the tokenizer must outlive it.
class TextStream {
 public:
  struct Emission {
    std::string text;                         // became certain with this id
    std::optional<std::string> matched_stop;  // the stop string that has ended the text
    bool marked = false;                      // the id is one of `marks` and stands behind the text
  };

  // The answer continues `prompt`: its text is Decode(prompt + answer) without Decode(prompt). A
  // character that the prompt's last bytes left open belongs to the answer. Stop strings are
  // well-formed UTF-8; empty ones are ignored. `include_stop` returns the matched one as text too.
  // `show_special` as Decode takes it. `marks`, ascending: special tokens that have no text and
  // whose places in it are told. Neither a character nor a stop string goes on across one.
  TextStream(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
             std::vector<std::string> stop_strings, bool include_stop, bool show_special = false,
             std::vector<int32_t> marks = {});

  // Once a stop string has matched, further ids change nothing.
  Emission Push(int32_t id);

  // The text still held back: no more ids will come.
  std::string Flush();

  const std::optional<std::string>& matched_stop() const { return matched_stop_; }

 private:
  // Moves what became certain out of `held_`. `added` bytes at its end are new.
  std::string Release(size_t added);
  size_t HeldBack() const;
  std::string_view Bytes(int32_t id) const {
    return show_special_ ? tokenizer_.ShownBytes(id) : tokenizer_.PieceBytes(id);
  }

  const Tokenizer& tokenizer_;
  std::vector<std::string> stop_strings_;
  bool include_stop_;
  bool show_special_;
  std::vector<int32_t> marks_;
  Utf8Assembler assembler_;
  bool first_ = true;  // no id has added a byte yet, the prompt's included
  std::string held_;   // whole characters, not returned yet
  std::optional<std::string> matched_stop_;
};

}  // namespace eta
