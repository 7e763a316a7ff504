// The first steps of an engine, before any request's. A GPU loads kernels, chooses the algorithms
// of matrix products and allocates memory when they are first needed. Warming up does all that
// before the first request comes, and shows a device that cannot compute.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"

namespace eta {

// Runs prompts of every number of rows that `backend` tells apart, up to `max_rows`, and decode
// steps with the model's own attention and with full attention. It needs a context of `max_rows` +
// 1 tokens, as far as `cache` has room. It writes into the first blocks of `cache`, which nothing
// may hold yet. Returns the error of the first step that failed.
absl::Status WarmUp(const Backend& backend, Model& model, const KvCache& cache, int32_t max_rows);

}  // namespace eta
