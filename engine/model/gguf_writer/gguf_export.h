// Writes a model as a GGUF file, with gate, predictor and index metric if it has them
// (engine/checkpoint/gguf/gguf_eta.h). Other programs do not know these three.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "kernels/weights/ggml_type.h"

namespace eta {

struct ExportedGguf {
  int64_t num_tensors = 0;
  uint64_t bytes = 0;
};

// Matrices are stored as `matrices`: kF32, kF16, kBF16 or kQ8_0, of which those whose rows are not
// whole blocks stay float32. Norms, biases, the predictor of thresholds and the index metric are
// float32. `path` is there whole afterwards, or not at all; one tensor is in memory at a time.
// ALREADY_EXISTS if it was there; UNIMPLEMENTED, naming it, for what the format cannot say of the
// model; OUT_OF_RANGE, naming the tensor, for numbers that the type cannot hold; errors of
// ParseModelConfig, ValidateTensors and ValidateIndexMetric. Before a tensor is written the head is
// read back, so that the file is the same model.
absl::StatusOr<ExportedGguf> ExportGguf(const Checkpoint& checkpoint, const std::string& path,
                                        GgmlType matrices);

}  // namespace eta
