#include "engine/format/library/xgrammar_matcher.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

namespace eta {

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
  try {
    if (matcher_.IsTerminated()) {
      std::ranges::fill(mask, 0);
      return true;
    }
    // Where every token fits the mask is filled all the same.
    matcher_.FillNextTokenBitmask(&tensor);
  } catch (const std::exception&) {
    std::ranges::fill(mask, 0);
    return true;
  }
  for (size_t i = 0; i < mask.size(); ++i) mask[i] &= ~grammar_->forbidden[i];
  return true;
}

bool XgrammarMatcher::Accept(int32_t token) {
  if (token < 0 || token >= grammar_->vocabulary_size) return false;
  const auto id = static_cast<size_t>(token);
  if ((grammar_->forbidden[id / 32] >> (id % 32) & 1) != 0) return false;
  try {
    return matcher_.AcceptToken(token);
  } catch (const std::exception&) {
    return false;
  }
}

bool XgrammarMatcher::AcceptText(std::string_view text) {
  try {
    return matcher_.AcceptString(std::string(text));
  } catch (const std::exception&) {
    return false;
  }
}

void XgrammarMatcher::Rollback(int32_t count) {
  matcher_.Rollback(count);
}

}  // namespace eta
