// Random data for benchmarks. A seed gives the same data on any backend and with any number of
// threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/workers.h"
#include "kernels/tensor_view.h"

namespace eta::bench {

// The i-th number of a stream: nearly normal (a sum of four uniform numbers), mean 0, deviation 1.
float RandomNormal(uint64_t seed, uint64_t i);

// Where one sequence of `num_tokens` tokens is in a pool. `id` chooses its content.
struct SequencePlace {
  int32_t id = 0;
  int32_t num_tokens = 0;
  std::span<const int32_t> block_table;
};

// Deals physical blocks 0 .. sequences * blocks_each - 1 in random order, as in a pool that has
// been in use. The table of sequence s is [s * blocks_each, (s + 1) * blocks_each).
std::vector<int32_t> DealBlocks(int32_t sequences, int32_t blocks_each, uint64_t seed);

// K and V of tokens in a backend's memory.
struct BackendTokens {
  std::unique_ptr<Buffer> k, v;
  int64_t rows = 0;
  int64_t width = 0;

  TensorView Keys(int64_t begin, int64_t count) const { return View(*k).Rows(begin, count); }
  TensorView Values(int64_t begin, int64_t count) const { return View(*v).Rows(begin, count); }

 private:
  TensorView View(const Buffer& buffer) const { return {buffer.as<float>(), rows, width, width}; }
};

// Keys and values of `num_blocks` blocks. Keys scatter around one centre per block and KV head.
// Values have the cache's type. Sequences take their content from here block by block; each begins
// elsewhere and starts over at the end. So a cache of any size is filled quickly, while every token
// has its own place in memory.
class KvContent {
 public:
  KvContent(const KvGeometry& geometry, int32_t num_blocks, uint64_t seed, cpu::Workers& workers);

  const KvGeometry& geometry() const { return geometry_; }
  int32_t num_blocks() const { return num_blocks_; }
  int32_t num_tokens() const { return num_blocks_ * geometry_.block_size; }
  // The content block of block `block`, and the content token at `position`, in sequence `id`.
  int32_t BlockAt(int32_t id, int32_t block) const {
    return static_cast<int32_t>((block + int64_t{id} * 37) % num_blocks_);
  }
  int32_t TokenAt(int32_t id, int32_t position) const {
    const int32_t b = geometry_.block_size;
    return BlockAt(id, position / b) * b + position % b;
  }
  const float* Key(int32_t content_token, int32_t kv_head) const {
    return keys_.data() + Offset(content_token, kv_head);
  }
  const float* Value(int32_t content_token, int32_t kv_head) const {
    return values_.data() + Offset(content_token, kv_head);
  }

  BackendTokens Upload(Backend& backend) const;
  // Appends every sequence, from position 0 on, to every layer: steps of prefill rows with AppendKv
  // only.
  void Fill(Backend& backend, std::span<const SequencePlace> sequences,
            std::span<const KvLayerView> layers) const;

 private:
  size_t Offset(int32_t content_token, int32_t kv_head) const {
    return (static_cast<size_t>(content_token) * static_cast<size_t>(geometry_.num_kv_heads) +
            static_cast<size_t>(kv_head)) *
           static_cast<size_t>(geometry_.head_dim);
  }

  KvGeometry geometry_;
  int32_t num_blocks_;
  std::vector<float> keys_;    // [num_tokens, HKV, d]
  std::vector<float> values_;  // [num_tokens, HKV, d]
};

// Queries [rows, HQ, d]. The heads of a group have the share `agreement`, in [0, 1], of a query in
// common.
std::vector<float> RandomQueries(int32_t rows, int32_t heads, int32_t kv_heads, int32_t head_dim,
                                 float agreement, uint64_t seed);

// Uploads float32 values.
std::unique_ptr<Buffer> UploadFloats(Backend& backend, std::span<const float> values);
// Downloads `count` elements of a float32, float16 or bfloat16 tensor as float32.
std::vector<float> DownloadFloats(Backend& backend, const Buffer& buffer, DType dtype,
                                  size_t count);

// One layer's blocks.
struct LayerPool {
  std::unique_ptr<Buffer> tiles, records;
  KvLayerView view() const { return {tiles->data(), records->data()}; }
};
LayerPool AllocatePool(Backend& backend, const KvGeometry& geometry, int32_t num_blocks);

// The differences between outputs and the right values. `excess` is the largest amount by which
// |got - want| exceeds the contract's tolerance (2e-3 with 8- or 16-bit KV, 2e-5 with float32 KV,
// plus the rounding of the output's type). `relative` is the root mean square of the difference
// over that of the right values: over a long context outputs are small, and an absolute tolerance
// alone would accept anything.
struct Agreement {
  double largest_error = 0.0;
  double excess = -1.0;
  double relative = 0.0;

  bool ok() const { return excess <= 0.0 && relative <= 0.01; }  // false for NaN
  // Keeps the worse of both for each number.
  void Merge(const Agreement& other);
  std::string ToString() const;
};
Agreement Compare(std::span<const float> got, std::span<const float> want, DType kv, DType out);

}  // namespace eta::bench
