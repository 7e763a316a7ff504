// The steps that an engine takes before anybody's, on a device that loads kernels, chooses the
// algorithms of matrix products and takes memory when they are first needed: the first requests
// find all that done, and a device that cannot compute shows it before they come.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"

namespace eta {

// Prompts of every number of rows that `backend` tells apart, up to `max_rows`, and decode steps
// with the model's own attention and with full attention. Needs a context of `max_rows` + 1 tokens,
// as far as `cache` has room, and writes into its first blocks, which must not be anybody's yet.
// Errors: those of the first step that failed.
absl::Status WarmUp(const Backend& backend, Model& model, const KvCache& cache, int32_t max_rows);

}  // namespace eta
