// A backend that records what the attention of every layer is given (recorded_attention.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "calibration/evaluation/tables/measures/recorded_attention.h"
#include "engine/model/model_config.h"
#include "kernels/forwarding_backend.h"
#include "kernels/params/layer.h"
#include "kernels/params/selection.h"

namespace eta {

// Which rows of a sequence are looked at: those at `first`, `first` + `stride` ...
struct RowSample {
  int32_t first = 0;
  int32_t stride = 1;  // at least 1

  bool Has(int32_t position) const { return position >= first && (position - first) % stride == 0; }
};

// Memory grows with the sequence: 8 bytes per token, layer, KV head and element of d. A backend
// that defers runs every layer in three parts, since what they were given is copied between them.
class AttentionRecorder : public ForwardingBackend {
 public:
  AttentionRecorder(std::shared_ptr<Backend> backend, const ModelConfig& config, RowSample sample);

  // Forgets what was recorded; the next rows are those of another sequence.
  void Begin();
  // What was recorded since.
  RecordedWindow& window() { return window_; }

  void Plan(const BatchView& batch) override;
  void RmsNorm(const RmsNormParams& params) override;
  void AppendKv(const AppendKvParams& params) override;
  // The last op of attention: thresholds are final, and nothing may be copied before it.
  void PrefillAttention(const AttentionParams& params) override;

 private:
  // A chosen row of the step.
  struct ChosenRow {
    int32_t index;
    int32_t position;
    float offset;
  };

  void NoteTempered(const SequenceRows& rows);

  const ModelConfig config_;
  const RowSample sample_;
  RecordedWindow window_;
  BatchView batch_;
  std::vector<ChosenRow> chosen_;
  std::vector<float> hidden_norms_;  // of the chosen rows, of the layer that is next to attend
  int32_t norms_ = 0;                // calls of RmsNorm in this step
  size_t next_layer_ = 0;            // of AppendKv; attention is one behind
};

}  // namespace eta
