#include "engine/format/library/xgrammar_matcher.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <new>
#include <string>
#include <utility>

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

// What `work` returns; `failed` where the library throws.
template <typename Work>
bool OrElse(bool failed, const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return failed;
  }
}

}  // namespace

XgrammarMatcher::XgrammarMatcher(std::shared_ptr<const MatchedGrammar> grammar)
    : grammar_(std::move(grammar)), matcher_(grammar_->grammar) {}

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
  const bool filled = !TooSlow() && !matcher_.IsTerminated() && OrElse(false, [&] {
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
  return OrElse(false, [&] { return matcher_.AcceptToken(token); });
}

bool XgrammarMatcher::AcceptText(std::string_view text) {
  return OrElse(false, [&] { return matcher_.AcceptString(std::string(text)); });
}

void XgrammarMatcher::Rollback(int32_t count) {
  matcher_.Rollback(count);
}

}  // namespace eta
