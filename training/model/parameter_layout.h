// Where each parameter of a model lies in one flat array of float32: the array of values, and those
// of gradients and moments, all have this layout. One array means one norm, one all-reduce and few
// calls of AdamW.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "training/model/model_spec.h"

namespace eta::training {

// A tensor by its name in the checkpoint (Hugging Face's names, self_attn.tau_proj; of native
// sparse attention names of our own).
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;  // [rows, cols] or [cols]
  int64_t offset = 0;          // elements
  int64_t count = 0;
  bool decayed = false;  // weight decay: matrices, but neither embeddings' nor predictors'
  bool trained = false;
};

// Parameters [begin, end) that AdamW treats alike.
struct ParameterRun {
  int64_t begin = 0;
  int64_t end = 0;
  bool decayed = false;
};

// Trained parameters come first, so gradients and moments are the first trained_count() elements
// of the layout. q, k and v of a layer are contiguous, so that they are one matrix of one product
// (of native sparse attention those of all branches), and so are gate and up. Padding between
// parameters is at most 63 elements; it is 0 in every array.
class ParameterLayout {
 public:
  ParameterLayout(const ModelSpec& spec, TrainedPart trained);

  const std::vector<Parameter>& parameters() const { return parameters_; }  // by offset
  // Null: the model has none of that name.
  const Parameter* Find(std::string_view name) const;
  int64_t count() const { return count_; }                  // elements, padding included
  int64_t trained_count() const { return trained_count_; }  // likewise
  const std::vector<ParameterRun>& trained_runs() const { return trained_runs_; }

 private:
  std::vector<Parameter> parameters_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::vector<ParameterRun> trained_runs_;
  int64_t count_ = 0;
  int64_t trained_count_ = 0;
};

// "model.layers.3." and the like.
std::string LayerPrefix(int32_t layer);

}  // namespace eta::training
