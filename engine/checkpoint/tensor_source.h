// Where a model's weights come from: a checkpoint on disk, or tensors made in memory.
#pragma once

#include <string>

#include "engine/checkpoint/tensor_reader.h"

namespace eta {

// Const methods are thread-safe.
class TensorSource : public TensorReader {
 public:
  virtual const std::string& config_json() const = 0;  // as ParseModelConfig reads it
  // What records of outliers are made with (eta-semantics.md, "Index kinds"); null: there is none.
  virtual const TensorReader* index_metric() const { return nullptr; }
};

}  // namespace eta
