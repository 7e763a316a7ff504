// Which requests have drafts of their answers verified, and how these come about.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/batching/drafts/draft_source.h"
#include "engine/request/request.h"

namespace eta {

struct DraftOptions {
  Speculation speculation = Speculation::kOff;  // of requests that do not say
  // Whether a decode row is computed to the same bits whatever rows stand beside it. If not, kAuto
  // drafts nothing.
  bool exact = false;
  int32_t length = 0;  // tokens of every draft; 0: as many as pay (draft_length.h)
  // Null: from the text (suffix_index.h). What it says takes the place too of what rows draw that
  // make drafts, if these are asked for alone.
  std::function<std::unique_ptr<DraftSource>(const Request&)> source;

  Speculation Wanted(const Request& request) const {
    const Speculation wish = request.speculation.value_or(speculation);
    return wish == Speculation::kAuto && !exact ? Speculation::kOff : wish;
  }
};

}  // namespace eta
