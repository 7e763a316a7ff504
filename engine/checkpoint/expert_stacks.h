// The experts of a gpt-oss folder, which has a layer's in one tensor of each kind, as tensors of
// each expert by the names of the model.
//
//   mlp.experts.gate_up_proj [E, D, 2F]        experts.I.gate_proj.weight [F, D], of the even
//                                              columns, and up_proj.weight, of the odd ones
//   mlp.experts.down_proj [E, F, D]            experts.I.down_proj.weight [D, F]
//   ..._proj_bias [E, 2F] and [E, D]           ..._proj.bias, likewise
//   mlp.router.weight, .bias                   mlp.gate.weight, .bias
//
// Of quantization_config "mxfp4": gate_up_proj_blocks uint8 [E, 2F, D/32, 16] and
// gate_up_proj_scales uint8 [E, 2F, D/32], and so of down_proj, rows [D, F/32]. They become ggml's
// blocks of MXFP4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/tensor_reader.h"

namespace eta {

// Immutable; reads are as thread-safe as the function that they are given.
class ExpertStacks {
 public:
  // The `size` bytes from `begin` on of a tensor of the files.
  using Read = std::function<absl::StatusOr<std::vector<std::byte>>(const std::string& name,
                                                                    uint64_t begin, uint64_t size)>;

  // Replaces the stacks in the tensors of the files, and renames the routers beside them. Without
  // any it changes nothing. INVALID_ARGUMENT, naming the tensor, for types and shapes that are not
  // those above, blocks without scales, and more tensors than a file may have.
  static absl::StatusOr<ExpertStacks> Present(std::map<std::string, TensorInfo>& tensors);

  bool Has(const std::string& name) const { return tensors_.contains(name); }
  // REQUIRES: Has(name).
  absl::StatusOr<StoredTensor> ReadStored(const std::string& name, const Read& read) const;
  // The same, blocks as float32.
  absl::StatusOr<std::vector<std::byte>> ReadNumbers(const std::string& name,
                                                     const Read& read) const;

 private:
  // Tensor (i, j) is (j, first + i * step) of the expert's part [depth, width] of the source. Of
  // blocks row i is row first + i * step of the part [depth, width] of the source, in blocks.
  struct Part {
    std::string source{};
    std::string scales{};  // of blocks; else empty
    uint64_t expert = 0;
    uint64_t depth = 1;
    uint64_t width = 0;
    uint64_t element = 1;  // bytes
    uint64_t first = 0;
    uint64_t step = 1;
  };

  class Presenter;

  static absl::StatusOr<StoredTensor> ReadBlocks(const Part& part, const Read& read);
  static absl::StatusOr<StoredTensor> ReadTurned(const Part& part, const Read& read);

  std::map<std::string, Part> tensors_;
};

}  // namespace eta
