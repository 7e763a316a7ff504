#include "engine/format/library/xgrammar_matcher.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/format/token_mask.h"

namespace eta {
namespace {

std::chrono::nanoseconds CpuTime() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// Adds what passes while it lives.
class Meter {
 public:
  explicit Meter(std::chrono::nanoseconds& sum) : sum_(sum), begin_(CpuTime()) {}
  ~Meter() { sum_ += CpuTime() - begin_; }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

 private:
  std::chrono::nanoseconds& sum_;
  const std::chrono::nanoseconds begin_;
};

}  // namespace

XgrammarMatcher::XgrammarMatcher(std::shared_ptr<const MatchedGrammar> grammar)
    : grammar_(std::move(grammar)), matcher_(grammar_->grammar) {}

template <typename Work>
bool XgrammarMatcher::Try(const Work& work) {
  if (broken_) return false;
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    broken_ = true;
    return false;
  }
}

bool XgrammarMatcher::Fill(std::span<uint32_t> mask) {
  auto shape = static_cast<int64_t>(mask.size());
  DLTensor tensor{.data = mask.data(),
                  .device = {.device_type = kDLCPU, .device_id = 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &shape,
                  .strides = nullptr,
                  .byte_offset = 0};
  const Meter meter(time_);
  const bool filled = !TooSlow() && !matcher_.IsTerminated() && Try([&] {
    // Where every token fits the mask is filled all the same.
    matcher_.FillNextTokenBitmask(&tensor);
    return true;
  });
  for (size_t i = 0; i < mask.size(); ++i) {
    mask[i] = filled ? mask[i] & ~grammar_->forbidden[i] : 0;
  }
  return true;
}

bool XgrammarMatcher::Accept(int32_t token) {
  if (token < 0 || token >= grammar_->vocabulary_size) return false;
  if (HasToken(grammar_->forbidden, token) || TooSlow()) return false;
  const Meter meter(time_);
  ++tokens_;
  return Try([&] { return matcher_.AcceptToken(token); });
}

bool XgrammarMatcher::AcceptText(std::string_view text) {
  return Try([&] { return matcher_.AcceptString(std::string(text)); });
}

void XgrammarMatcher::Rollback(int32_t count) {
  matcher_.Rollback(count);
}

absl::Status XgrammarMatcher::failure() const {
  const auto failure = [](absl::StatusCode code, const char* reason, const std::string& sentence) {
    return MakeError(code, "format: " + sentence, {.reason = reason, .field = "format"});
  };
  if (broken_) {
    return failure(absl::StatusCode::kInternal, "INTERNAL_ERROR",
                   absl::StrCat("the library that follows it failed after ", tokens_,
                                " tokens of the answer; another one may do"));
  }
  if (!TooSlow()) return absl::OkStatus();
  return failure(
      absl::StatusCode::kDeadlineExceeded, "FORMAT_TOO_SLOW",
      absl::StrCat("takes too long to follow: over ", most_time().count(), " ms of a CPU for ",
                   tokens_,
                   " tokens of the answer; one that can be read in fewer ways takes less"));
}

}  // namespace eta
