// A model in training as the tensors of a checkpoint, for the server's code: evaluation reads it
// as it is, the export writes it. float32 matrices are rounded to bfloat16 as in the folder that is
// written, so that what is measured is what is served; what the server keeps in float32 (norms,
// predictors, biases) stays so.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/tensor_source.h"
#include "training/model/parameters.h"

namespace eta::training {

class TrainedTensors final : public TensorSource {
 public:
  // The parameters and the index metric must outlive it. Values are read when they are asked for.
  TrainedTensors(const Parameters& parameters, std::string config_json,
                 const TensorReader* index_metric = nullptr);

  const std::string& config_json() const override { return config_json_; }
  const std::map<std::string, TensorInfo>& tensors() const override { return tensors_; }
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const override;
  const TensorReader* index_metric() const override { return index_metric_; }

 private:
  void AddZeroPredictors();

  const Parameters& parameters_;
  std::string config_json_;
  const TensorReader* index_metric_;
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace eta::training
