// Regular expressions of tokenizer.json: written for Oniguruma (Ruby's syntax), run by PCRE2.
//
// Patterns are a stranger's: the steps of one match, and the processor's time over a whole text,
// are bounded. The bound on time grows with the text, far above what patterns of real models take.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/byte_range.h"

namespace eta {

inline constexpr size_t kMaxPatternBytes = 16384;

// Immutable; thread-safe. Copies share the program.
class Regex {
 public:
  // INVALID_ARGUMENT for a pattern that is none or is too large; UNIMPLEMENTED, naming it, for what
  // TranslatePattern does not know.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);

 private:
  friend class RegexRun;
  struct Program;
  explicit Regex(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
};

// What matching in one text needs, and what is left of its bounds. Not thread-safe.
class RegexRun {
 public:
  // Bounds for a text of so many bytes, however it is cut and by however many patterns. `time`: of
  // the processor, beside that which each byte adds.
  explicit RegexRun(size_t text_bytes, std::chrono::nanoseconds time = std::chrono::seconds(1));
  ~RegexRun();
  RegexRun(const RegexRun&) = delete;
  RegexRun& operator=(const RegexRun&) = delete;

  // The first match that begins at `from` or behind it; absent: there is none, or status() is an
  // error, INVALID_ARGUMENT, which stays.
  // REQUIRES: well-formed UTF-8, `from` at a character or the end.
  std::optional<ByteRange> Find(const Regex& regex, std::string_view text, size_t from);
  const absl::Status& status() const { return status_; }

 private:
  struct State;

  int Match(const Regex::Program& program, std::string_view text, size_t from, size_t last);
  bool HasTime();
  void Exceeded(std::string_view what);

  std::unique_ptr<State> state_;
  std::chrono::nanoseconds cpu_deadline_;  // of the thread's processor time
  std::chrono::steady_clock::time_point next_look_;
  absl::Status status_;
};

// The matches in one text from left to right, as Oniguruma's binding finds them: an empty match
// right behind another match does not count.
class RegexMatches {
 public:
  RegexMatches(const Regex& regex, std::string_view text, RegexRun& run)
      : regex_(regex), text_(text), run_(run) {}
  // Absent: as RegexRun::Find.
  std::optional<ByteRange> Next();

 private:
  const Regex& regex_;
  std::string_view text_;
  RegexRun& run_;
  size_t from_ = 0;
  std::optional<size_t> last_end_;
};

}  // namespace eta
