// A request that Engine::Prepare has checked and made tokens of: what Engine::Submit queues.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request/request.h"

namespace eta {

struct PreparedRequest {
  Request request;              // with its deadline set; its prompt is the one below
  std::vector<int32_t> prompt;  // token ids, with the beginning-of-text token that text is given
  Clock::time_point arrival;    // the request's; of one that names none when Prepare was called

  int64_t prompt_tokens() const { return static_cast<int64_t>(prompt.size()); }
};

}  // namespace eta
