// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/text/pattern_translation.h"
#include "engine/tokenizer/text/unicode.h"

namespace eta {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr uint32_t kMaxSteps = 10'000'000;  // of one match, as Oniguruma has it
constexpr uint32_t kMaxDepth = 100'000;     // of the interpreter, where there is no JIT
constexpr uint32_t kMaxHeapKib = 65536;
constexpr size_t kJitStackBytes = size_t{1} << 20;
// One call looks at so many places where a match may begin, so that the clock is looked at between.
constexpr size_t kPlaces = 16;
constexpr nanoseconds kTimePerByte = nanoseconds(250);
constexpr nanoseconds kLookEvery = std::chrono::milliseconds(10);

// The thread's own: a busy machine must not make a text invalid.
nanoseconds CpuTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

template <typename T>
T* OrBadAlloc(T* made) {
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

std::string MessageOf(int error) {
  std::array<unsigned char, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return std::string(reinterpret_cast<const char*>(text.data()));
}

}  // namespace

struct Regex::Program {
  explicit Program(pcre2_code* compiled) : code(compiled) {}
  ~Program() { pcre2_code_free(code); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pcre2_code* code;
};

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pattern may have ", kMaxPatternBytes, " bytes"));
  }
  ASSIGN_OR_RETURN(const auto translated, TranslatePattern(pattern));
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      OrBadAlloc(pcre2_compile_context_create(nullptr)), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* const code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT,
                    &error, &offset, context.get());
  if (code == nullptr) {
    if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
    return absl::InvalidArgumentError(absl::StrCat("pattern: ", MessageOf(error)));
  }
  auto program = std::make_shared<const Program>(code);
  // Where the system lets no memory become code, the interpreter does the same.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Regex(std::move(program));
}

struct RegexRun::State {
  State() {
    pcre2_set_match_limit(context.get(), kMaxSteps);
    pcre2_set_depth_limit(context.get(), kMaxDepth);
    pcre2_set_heap_limit(context.get(), kMaxHeapKib);
  }

  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context{
      OrBadAlloc(pcre2_match_context_create(nullptr)), &pcre2_match_context_free};
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data{
      OrBadAlloc(pcre2_match_data_create(1, nullptr)), &pcre2_match_data_free};
  // For what needs more than the thread's stack gives.
  std::unique_ptr<pcre2_jit_stack, decltype(&pcre2_jit_stack_free)> jit_stack{
      nullptr, &pcre2_jit_stack_free};
};

RegexRun::RegexRun(size_t text_bytes, nanoseconds time)
    : state_(std::make_unique<State>()),
      // cannot wrap: the text is in memory, and a microsecond for each byte of it fits 64 bits
      cpu_deadline_(CpuTime() + time + kTimePerByte * static_cast<int64_t>(text_bytes)),
      next_look_(steady_clock::now() + kLookEvery) {}

RegexRun::~RegexRun() = default;

void RegexRun::Exceeded(std::string_view what) {
  status_ = absl::InvalidArgumentError(absl::StrCat(
      "text: a pattern of the model's tokenizer exceeds its limit of ", std::string(what)));
}

bool RegexRun::HasTime() {
  const auto now = steady_clock::now();
  if (now < next_look_) return true;
  next_look_ = now + kLookEvery;
  if (CpuTime() < cpu_deadline_) return true;
  Exceeded("time");
  return false;
}

int RegexRun::Match(const Regex::Program& program, std::string_view text, size_t from,
                    size_t last) {
  pcre2_set_offset_limit(state_->context.get(), last);
  for (;;) {
    const int found =
        pcre2_match(program.code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                    PCRE2_NO_UTF_CHECK, state_->data.get(), state_->context.get());
    if (found != PCRE2_ERROR_JIT_STACKLIMIT || state_->jit_stack != nullptr) return found;
    state_->jit_stack.reset(
        OrBadAlloc(pcre2_jit_stack_create(kJitStackBytes / 32, kJitStackBytes, nullptr)));
    pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->jit_stack.get());
  }
}

std::optional<ByteRange> RegexRun::Find(const Regex& regex, std::string_view text, size_t from) {
  if (!status_.ok()) return std::nullopt;
  while (HasTime()) {
    const size_t last = std::min(text.size(), from + kPlaces);
    const int found = Match(*regex.program_, text, from, last);
    if (found > 0) {
      const PCRE2_SIZE* const match = pcre2_get_ovector_pointer(state_->data.get());
      return ByteRange{.begin = match[0], .end = match[1]};
    }
    if (found != PCRE2_ERROR_NOMATCH) {
      if (found == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
      Exceeded(found == PCRE2_ERROR_MATCHLIMIT ? "steps" : MessageOf(found));
      return std::nullopt;
    }
    if (last == text.size()) return std::nullopt;
    from = last + 1;
    while (from < text.size() && IsUtf8Continuation(text[from])) ++from;
  }
  return std::nullopt;
}

std::optional<ByteRange> RegexMatches::Next() {
  while (from_ <= text_.size()) {
    const std::optional<ByteRange> match = run_.Find(regex_, text_, from_);
    if (!match) return std::nullopt;
    if (match->begin == match->end && last_end_ == match->end) {
      from_ += from_ < text_.size() ? CharacterAt(text_, from_).size : 1;
      continue;
    }
    from_ = match->end;
    last_end_ = match->end;
    return match;
  }
  return std::nullopt;
}

}  // namespace eta
