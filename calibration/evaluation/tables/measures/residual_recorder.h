// A backend that records the residual stream behind every layer, and the logits, of chosen rows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "calibration/evaluation/tables/measures/attention_recorder.h"
#include "engine/model/model_config.h"
#include "kernels/forwarding_backend.h"
#include "kernels/params/sampling.h"

namespace eta {

struct RecordedResiduals {
  std::vector<int32_t> positions;                       // of the rows
  std::vector<std::vector<std::vector<float>>> layers;  // [L][rows][D], behind the layer
  std::vector<std::vector<float>> logits;  // [rows][V]; empty where none were asked for
};

// One sequence at a time.
class ResidualRecorder : public ForwardingBackend {
 public:
  ResidualRecorder(std::shared_ptr<Backend> backend, const ModelConfig& config, RowSample sample);

  // Forgets what was recorded; the next rows are those of another sequence.
  void Begin();
  const RecordedResiduals& recorded() const { return recorded_; }

  void Plan(const BatchView& batch) override;
  void RmsNorm(const RmsNormParams& params) override;
  void Sample(const SampleParams& params) override;

 private:
  // The rows of the step that are recorded, and what each is in `recorded_`.
  struct ChosenRow {
    int32_t index;
    size_t recorded;
  };
  void Keep(const TensorView& residual, size_t layer);

  const int32_t num_layers_;
  const RowSample sample_;
  RecordedResiduals recorded_;
  std::vector<ChosenRow> chosen_;
  std::vector<int32_t> logit_rows_;  // rows of the step whose logits come next
  int32_t norms_ = 0;                // calls of RmsNorm in this step
};

}  // namespace eta
