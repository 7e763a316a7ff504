// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/checked.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/gguf/gguf_config.h"
#include "engine/checkpoint/gguf/gguf_metadata.h"
#include "engine/checkpoint/gguf/gguf_rope.h"
#include "engine/checkpoint/gguf/gguf_tensor_names.h"
#include "engine/checkpoint/gguf/gguf_tokenizer.h"

namespace eta {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxExperts = 1024;  // of a layer
constexpr uint64_t kMaxRopeFactorBytes = 1024 * sizeof(float);

absl::StatusOr<std::vector<float>> ReadRopeFactors(std::span<const InputFile> files,
                                                   const GgufHeader& header) {
  const auto found = header.tensors.find(kGgufRopeFactors);
  if (found == header.tensors.end()) return std::vector<float>();
  const GgufTensor& tensor = found->second;
  if (tensor.layout.type != GgmlType::kF32 || tensor.shape.size() != 1 ||
      tensor.bytes > kMaxRopeFactorBytes) {
    return absl::InvalidArgumentError(
        "GGUF file: tensor 'rope_freqs.weight' must be a list of at most 1024 numbers, as F32");
  }
  std::vector<float> factors(tensor.bytes / sizeof(float));
  RETURN_IF_ERROR(
      files[tensor.part].ReadAt(tensor.offset, std::as_writable_bytes(std::span(factors))));
  return factors;
}

// The rows of a tensor in Hugging Face's order: row h, j, s of [heads, pairs, 2] belongs at h, s, j
// of [heads, 2, pairs].
std::vector<std::byte> InOrder(std::span<const std::byte> data, uint64_t rows, uint64_t heads) {
  const uint64_t row_bytes = data.size() / rows;
  const uint64_t head_rows = rows / heads;
  std::vector<std::byte> ordered(data.size());
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t in_head = row % head_rows;
    // cannot wrap: both are rows of the tensor, whose bytes are in memory
    const uint64_t target = row - in_head + in_head % 2 * (head_rows / 2) + in_head / 2;
    // cannot wrap: places in the tensor's bytes
    std::memcpy(&ordered[target * row_bytes], &data[row * row_bytes], row_bytes);
  }
  return ordered;
}

// Exact for what lies between 0.5 and 2^23, and within 2^-25 below.
void Decrement(std::span<std::byte> floats) {
  for (; floats.size() >= sizeof(float); floats = floats.subspan(sizeof(float))) {
    float value = 0.0f;
    std::memcpy(&value, floats.data(), sizeof(value));
    value -= 1.0f;
    std::memcpy(floats.data(), &value, sizeof(value));
  }
}

}  // namespace

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path, const InputFileOptions& options) {
  ASSIGN_OR_RETURN(auto parts, OpenGgufParts(path, options));
  GgufFile file(std::move(parts.files));
  const absl::Status read = file.Present(parts.header);
  if (read.ok()) return file;
  return absl::Status(read.code(), absl::StrCat("file ", Quoted(file.files_.front().name()), ": ",
                                                std::string(read.message())));
}

absl::Status GgufFile::Present(const GgufHeader& header) {
  ASSIGN_OR_RETURN(const auto factors, ReadRopeFactors(files_, header));

  GgufMetadata metadata(header);
  ASSIGN_OR_RETURN(auto tokenizer, ReadGgufTokenizer(metadata));
  ASSIGN_OR_RETURN(auto config, MakeConfigJson(metadata, header, tokenizer, factors));
  RETURN_IF_ERROR(AddTensors(header, config.post_norms));
  if (config.permuted_heads) {
    for (const auto& [name, tensor] : header.tensors) {
      const auto named = ToHuggingFaceName(name);
      if (!named || named->permuted == PermutedHeads::kNone) continue;
      RETURN_IF_ERROR(PermuteHeads(named->name, named->permuted == PermutedHeads::kQuery
                                                    ? config.num_query_heads
                                                    : config.num_kv_heads));
    }
  }
  texts_ = {.config_json = std::move(config.json),
            .tokenizer_files = std::move(tokenizer.files),
            .generation_config_json = std::move(tokenizer.generation_config_json)};
  return absl::OkStatus();
}

absl::Status GgufFile::AddTensors(const GgufHeader& header, bool post_norms) {
  for (const auto& [name, tensor] : header.tensors) {
    if (name == kGgufRopeFactors) continue;
    const auto named = ToHuggingFaceName(name, post_norms);
    if (!named) {
      return absl::UnimplementedError(
          absl::StrCat("GGUF file: tensor ", Quoted(name), " is not known"));
    }
    if (stored_.contains(named->name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("GGUF file: tensor ", Quoted(name), " is there twice, by another name too"));
    }
    if (named->experts) {
      RETURN_IF_ERROR(AddExperts(name, tensor, named->name));
    } else {
      AddTensor(named->name, tensor, named->index_metric);
    }
    if (post_norms && name.ends_with("norm.weight")) RETURN_IF_ERROR(TakeOne(named->name));
  }
  return absl::OkStatus();
}

absl::Status GgufFile::TakeOne(const std::string& name) {
  Stored& stored = stored_.at(name);
  stored.has_one = true;
  if (stored.tensor.layout.type == GgmlType::kF32) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("GGUF file: tensor of ", Quoted(name), " is not F32"));
}

void GgufFile::AddTensor(const std::string& name, const GgufTensor& tensor, bool index_metric) {
  TensorInfo info;
  info.dtype = tensor.layout.unpacked;
  info.shape = tensor.shape;
  info.end = *CheckedBytes(info.shape, SizeOf(info.dtype));  // fits: ParseGgufHeader
  (index_metric ? metric_tensors_ : tensors_).emplace(name, std::move(info));
  stored_.emplace(name, Stored{.tensor = tensor});
}

// Rows are whole blocks, so that each expert's blocks are its own.
absl::Status GgufFile::AddExperts(const std::string& name, const GgufTensor& stack,
                                  const std::string& experts) {
  const auto invalid = [&name](const std::string& sentence) {
    return absl::InvalidArgumentError(
        absl::StrCat("GGUF file: tensor ", Quoted(name), " ", sentence));
  };
  const bool biases = experts.ends_with(".bias");
  if (stack.shape.size() != (biases ? 2 : 3)) {
    return invalid(biases ? "must have two dimensions" : "must have three dimensions");
  }
  const auto count = static_cast<uint64_t>(stack.shape.front());
  if (count > kMaxExperts) return invalid(absl::StrCat("has over ", kMaxExperts, " experts"));
  if (stored_.size() + count > kGgufMaxTensors) {
    return invalid(absl::StrCat("brings the file over ", kGgufMaxTensors,
                                " tensors, each expert counted for itself"));
  }
  GgufTensor one = stack;
  one.shape.erase(one.shape.begin());
  one.bytes = stack.bytes / count;
  for (uint64_t expert = 0; expert < count; ++expert) {
    // cannot wrap: a place in the stack's bytes
    one.offset = stack.offset + expert * one.bytes;
    AddTensor(ExpertName(experts, static_cast<int64_t>(expert)), one, /*index_metric=*/false);
  }
  return absl::OkStatus();
}

absl::Status GgufFile::PermuteHeads(const std::string& name, int64_t heads) {
  Stored& stored = stored_.at(name);
  const GgufTensor& tensor = stored.tensor;
  const int64_t rows = tensor.shape.front();
  const auto invalid = [&name](const std::string& sentence) {
    return absl::InvalidArgumentError(
        absl::StrCat("GGUF file: tensor of ", Quoted(name), " ", sentence));
  };
  if (tensor.shape.size() > 2) return invalid("has over two dimensions");
  if (rows % heads != 0 || rows / heads % 2 != 0) {
    return invalid("has rows that are not whole pairs of its heads");
  }
  if (tensor.shape.size() == 1 && tensor.layout.block_elements != 1) {
    return invalid("is quantised and has one dimension");
  }
  stored.permuted_heads = heads;
  return absl::OkStatus();
}

absl::StatusOr<std::string> GgufFile::TensorsSha256() const {
  Sha256 hash;
  std::vector<std::byte> piece;
  for (const auto& [name, stored] : stored_) {
    const GgufTensor& tensor = stored.tensor;
    hash.Update(absl::StrCat(name.size(), " ", name, " ", static_cast<int>(tensor.layout.type), " ",
                             absl::StrJoin(tensor.shape, "x"), " ", stored.permuted_heads, "\n"));
    for (uint64_t read = 0; read < tensor.bytes; read += piece.size()) {
      piece.resize(std::min<uint64_t>(kPieceBytes, tensor.bytes - read));
      RETURN_IF_ERROR(files_[tensor.part].ReadAt(tensor.offset + read, piece));
      hash.Update({reinterpret_cast<const char*>(piece.data()), piece.size()});
    }
  }
  return hash.Hex();
}

absl::StatusOr<const GgufFile::Stored*> GgufFile::Find(const std::string& name) const {
  const auto found = stored_.find(name);
  if (found != stored_.end()) return &found->second;
  return absl::NotFoundError(absl::StrCat("tensor ", Quoted(name), " does not exist"));
}

absl::StatusOr<std::vector<std::byte>> GgufFile::Read(const std::string& name) const {
  ASSIGN_OR_RETURN(const Stored* stored, Find(name));
  const GgufTensor& tensor = stored->tensor;
  const int64_t heads = stored->permuted_heads;
  const GgmlLayout& layout = tensor.layout;
  const auto info = tensors_.find(name);
  std::vector<std::byte> data(
      (info == tensors_.end() ? metric_tensors_.at(name) : info->second).bytes());
  // cannot wrap: at most kPieceBytes
  std::vector<std::byte> blocks(
      std::min<uint64_t>(tensor.bytes, kPieceBytes / layout.block_bytes * layout.block_bytes));
  // cannot wrap: the size of one block of numbers
  const uint64_t block_data_bytes = layout.block_elements * SizeOf(layout.unpacked);
  uint64_t written = 0;
  for (uint64_t read = 0; read < tensor.bytes; read += blocks.size()) {
    blocks.resize(std::min<uint64_t>(blocks.size(), tensor.bytes - read));
    RETURN_IF_ERROR(files_[tensor.part].ReadAt(tensor.offset + read, blocks));
    UnpackBlocks(layout, blocks, std::span(data).subspan(written));
    // cannot wrap: a part of `data`
    written += blocks.size() / layout.block_bytes * block_data_bytes;
  }
  if (stored->has_one) Decrement(data);
  if (heads == 0) return data;
  return InOrder(data, static_cast<uint64_t>(tensor.shape.front()), static_cast<uint64_t>(heads));
}

absl::StatusOr<StoredTensor> GgufFile::ReadStored(const std::string& name) const {
  ASSIGN_OR_RETURN(const Stored* stored, Find(name));
  const GgufTensor& tensor = stored->tensor;
  const int64_t heads = stored->permuted_heads;
  StoredTensor read;
  read.bytes.resize(tensor.bytes);
  RETURN_IF_ERROR(files_[tensor.part].ReadAt(tensor.offset, read.bytes));
  if (heads != 0) {
    read.bytes = InOrder(read.bytes, static_cast<uint64_t>(tensor.shape.front()),
                         static_cast<uint64_t>(heads));
  }
  if (stored->has_one) Decrement(read.bytes);
  if (tensor.layout.block_elements > 1) read.blocks = tensor.layout;
  return read;
}

}  // namespace eta
