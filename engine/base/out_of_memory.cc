#include "engine/base/out_of_memory.h"

#include <chrono>

#include "engine/base/error.h"

namespace eta {

const absl::Status& OutOfMemory() {
  static const absl::Status* const status = new absl::Status(
      MakeError(absl::StatusCode::kResourceExhausted, "the server has no memory for this call",
                {.reason = "MEMORY_PRESSURE", .retry_after = std::chrono::milliseconds(1000)}));
  return *status;
}

}  // namespace eta
