// A small random model as a GGUF file, and the tensors that Hugging Face's form of it has.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/weights/ggml_type.h"
#include "tests/testing/engine/gguf_writer.h"

namespace eta::testing {

struct TinyGgufOptions {
  // llama, qwen2, qwen3, qwen3moe, smollm3, gemma3 or gpt-oss, of which layers have windows of 20
  // in turns
  std::string architecture = "llama";
  bool tied = false;
  uint32_t num_layers = 2;
  uint32_t model_dim = 64;
  uint32_t ffn_dim = 96;
  uint32_t num_query_heads = 4;
  uint32_t num_kv_heads = 2;
  uint32_t head_dim = 32;
  uint32_t num_experts = 6;  // of qwen3moe and gpt-oss, two of them for a row
  uint32_t expert_ffn_dim = 32;
  uint32_t seed = 1;
};

struct TinyGguf {
  explicit TinyGguf(const TinyGgufOptions& options = {});

  GgufWriter file;  // of version 3, all tensors F32; a SentencePiece vocabulary of 264 pieces
  std::map<std::string, std::vector<float>> tensors;  // by Hugging Face's names, in its order
};

// Gives a matrix of the file, by GGUF's name, random blocks of this type; its rows must be whole
// blocks. TinyGguf::tensors stays as it was.
void UseBlocks(GgufWriter& file, const std::string& name, GgmlType type);

// The same for all matrices, with these types in turn.
void UseBlocks(GgufWriter& file, std::span<const GgmlType> types);

// Turns `file`'s vocabulary into a byte-level one of the same size: <s> and </s> at 1 and 2, the
// 256 bytes, and what the merges make.
void UseByteLevelVocabulary(GgufWriter& file);

}  // namespace eta::testing
