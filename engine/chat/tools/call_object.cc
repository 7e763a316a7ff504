// lint: untrusted-input, fuzz-covered
#include "engine/chat/tools/call_object.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "engine/base/json/json_check.h"
#include "engine/chat/chat_template.h"

namespace eta {
namespace {

constexpr size_t kMaxWordBytes = 64;  // of a key, and of a tool's name

}  // namespace

bool AreArguments(const std::string& json) {
  return CheckJson("arguments", json,
                   {.max_bytes = std::numeric_limits<size_t>::max(),
                    .max_depth = ChatTemplateLimits::kToolDepth})
      .ok();
}

CallObject::CallObject(std::span<const std::string> tools)
    : tools_(tools), json_(ChatTemplateLimits::kToolDepth + 1) {}

CallObject::State CallObject::Feed(char c) {
  using Place = JsonCursor::Place;
  const Place before = json_.place();
  const bool was_outside = json_.depth() == 1;
  if (!json_.Feed(c)) return State::kBroken;
  if (in_key_) {
    if (!json_.in_string()) {
      in_key_ = false;
      return BeginField() ? State::kMore : State::kBroken;
    }
    key_ += c;
    return key_.size() <= kMaxWordBytes ? State::kMore : State::kBroken;
  }
  if (in_value_) {
    if (field_ == Field::kArguments) arguments_ += c;
    if (json_.depth() == 1 && !json_.in_string()) {
      in_value_ = false;
      return EndField() ? State::kMore : State::kBroken;
    }
    if (field_ == Field::kName) value_ += c;
    return value_.size() <= kMaxWordBytes ? State::kMore : State::kBroken;
  }
  if (json_.done()) return !name_.empty() && !arguments_.empty() ? State::kDone : State::kBroken;
  if (!was_outside || IsJsonSpace(c)) return State::kMore;
  if (before == Place::kFirstKey || before == Place::kKey) {
    in_key_ = true;
    key_.clear();
  } else if (before == Place::kValue) {
    in_value_ = true;
    value_.clear();
    if (field_ == Field::kArguments) arguments_ += c;
    if (c != (field_ == Field::kArguments ? '{' : '"')) return State::kBroken;
  }
  return State::kMore;
}

bool CallObject::BeginField() {
  if (key_ == "name") {
    field_ = Field::kName;
  } else if (key_ == "arguments" || key_ == "parameters") {
    field_ = Field::kArguments;
    if (!arguments_.empty()) return false;
  } else if (key_ == "type" || key_ == "id") {
    field_ = Field::kOther;
  } else {
    return false;
  }
  if (seen_keys_.find(key_ + ' ') != std::string::npos) return false;
  seen_keys_ += key_ + ' ';
  return true;
}

bool CallObject::EndField() {
  if (field_ == Field::kArguments) return AreArguments(arguments_);
  if (field_ != Field::kName) return true;
  name_ = value_;
  return std::find(tools_.begin(), tools_.end(), name_) != tools_.end();
}

}  // namespace eta
