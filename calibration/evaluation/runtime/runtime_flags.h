// The flags that say which model, backend and cache an evaluation runs on.
#pragma once

#include <string>

#include "calibration/evaluation/runtime/runtime.h"
#include "kernels/backend.h"

namespace CLI {
class App;
}

namespace eta {

// Adds --backend, --threads, --device and --compute. `backend` must not move until the command line
// is parsed.
void RegisterBackend(CLI::App& command, BackendOptions& backend);

// Says what is wrong with a flag's number; empty if nothing is. NaN lies in no range.
std::string CheckReal(const std::string& text, double low, double high);

// Parsing the command line writes these flags. The object must not move until then.
struct RuntimeFlags : RuntimeOptions {
  // Adds --model, --kv_dtype, --index, --index_dtype, --weights and the flags of RegisterBackend.
  void Register(CLI::App& command);
};

}  // namespace eta
