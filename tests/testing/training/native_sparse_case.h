// Cases of the ops of Native Sparse Attention in training, on any backend, and the rules that a
// choice of blocks keeps.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/training/harness.h"
#include "training/native_sparse_params.h"

namespace eta::training::testing {

// A choice of blocks as KeySelection has it, with tiles that all, none and some queries read.
std::vector<uint64_t> RandomBlocks(Numbers& numbers, const AttentionShape& shape);

struct CompressedCase {
  AttentionShape shape;
  std::vector<double> q;         // [B T, HQ d]
  std::vector<double> k;         // [B C, HKV d]
  std::vector<double> v;         // [B C, HKV d]
  std::vector<double> grad_out;  // [B T, HQ d]

  std::string Describe() const;
};
// Of a shape without its scale.
CompressedCase MakeCompressedCase(Numbers& numbers, AttentionShape shape);
// Lengths below one window, ragged ones, and near `longest`; more than 16 blocks leave something to
// choose.
CompressedCase RandomCompressedCase(uint64_t seed, const std::vector<int32_t>& head_dims,
                                    int32_t longest);
// "out", "lse" (0 where it is -infinity of a row that sees no key), and, with `backward`, "dq",
// "dk", "dv". `selected`, unless null, becomes the op's choice.
Results RunCompressedAttention(const CompressedCase& c, Harness& harness, bool backward = true,
                               std::vector<uint64_t>* selected = nullptr);

// How far a choice is from the rules of CompressedAttentionParams: the largest difference by which
// a block that was left out is more important than one that was taken in its place. Infinite where
// the choice has another size or lacks a block that it must have. `rounding` is the harness's.
double ChoiceError(const CompressedCase& c, const std::vector<uint64_t>& selected,
                   DType rounding = DType::kFloat64);

struct WindowsCase {
  int32_t sequences = 0;
  int32_t length = 0;
  int32_t heads = 0;
  int32_t head_dim = 0;
  std::vector<double> x;         // [B T, H d]
  std::vector<double> grad_out;  // [B C H, kCompressedWindow d]
};
WindowsCase RandomWindowsCase(uint64_t seed, const std::vector<int32_t>& head_dims,
                              int32_t longest);
// "out" and, with `backward`, "dx".
Results RunGatherWindows(const WindowsCase& c, Harness& harness, bool backward = true);

struct BranchesCase {
  int64_t rows = 0;
  int32_t heads = 0;
  int32_t head_dim = 0;
  std::vector<double> gates;                            // [R, 3 HQ]
  std::array<std::vector<double>, kBranches> branches;  // [R, HQ d]
  std::vector<double> grad_out;                         // [R, HQ d]
};
BranchesCase RandomBranchesCase(uint64_t seed, const std::vector<int32_t>& head_dims,
                                int32_t most_rows);
// "out" and, with `backward`, "dgates", "dbranch 0" .. "dbranch 2", and each once more with
// " in place".
Results RunMixBranches(const BranchesCase& c, Harness& harness, bool backward = true);

}  // namespace eta::training::testing
