// The prefill of a whole model with random weights, op by op as a model runs them, in chunks: the
// full cost of a prompt.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace eta::bench {

struct ModelShape {
  int32_t layers = 8;
  int32_t model_dim = 512;
  int32_t ffn_dim = 1408;
  int32_t query_heads = 8;
  int32_t kv_heads = 2;
  int32_t head_dim = 64;
  int32_t vocab = 8192;
};

class PrefillCase {
 public:
  PrefillCase(Backend& backend, const ModelShape& shape, int32_t tokens, int32_t chunk,
              DType kv_dtype, Gate gate);

  // Runs the whole prompt chunk after chunk, up to the logits of its last row.
  void Run();
  // Runs attention of the last chunk over the cache that Run() left.
  void Attend();
  std::vector<float> attention_output() const;  // of Attend(), [chunk, HQ * d]

  double matmul_flop() const;
  double attention_flop() const;       // the causal half of scores and values
  double last_attention_flop() const;  // of Attend()

 private:
  struct Layer {
    std::unique_ptr<Matrix> qkv, out, gate_up, down;
    std::unique_ptr<Buffer> tiles, records;
    KvLayerView kv() const { return {tiles->data(), records->data()}; }
  };

  void Step(int32_t begin, int32_t count);
  void RunLayer(Layer& layer, int32_t index, int32_t rows);
  void Plan(int32_t begin, int32_t count);
  AttentionParams Attention(const Layer& layer, int32_t rows) const;
  TensorView View(const Buffer& buffer, int64_t rows, int64_t cols) const;
  std::unique_ptr<Matrix> RandomMatrix(int64_t rows, int64_t cols);
  std::unique_ptr<Buffer> Zeros(size_t floats);

  int64_t q_width() const { return int64_t{shape_.query_heads} * shape_.head_dim; }
  int64_t kv_width() const { return int64_t{shape_.kv_heads} * shape_.head_dim; }

  Backend& backend_;
  ModelShape shape_;
  int32_t tokens_;
  int32_t chunk_;
  KvGeometry geometry_;
  Gate gate_;
  std::vector<Layer> layers_;
  std::unique_ptr<Matrix> embedding_;
  std::unique_ptr<Buffer> norm_weight_, tau_weight_, tau_bias_;
  std::unique_ptr<Buffer> x_, normed_, qkv_, thresholds_, attended_, gate_up_, ffn_, logits_;
  std::vector<int32_t> ids_, block_table_;
  SequenceRows sequence_;
  BatchView batch_;
};

}  // namespace eta::bench
