// A GGUF file, or a model's several, as a checkpoint: tensors by Hugging Face's names, in its order
// of rows, and its metadata as the files that a Hugging Face folder has.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/files/input_file.h"
#include "engine/checkpoint/gguf/gguf_parts.h"
#include "engine/checkpoint/safetensors_header.h"
#include "engine/checkpoint/tensor_reader.h"
#include "engine/checkpoint/tokenizer_files.h"

namespace eta {

// What the metadata say, as files.
struct GgufTexts {
  std::string config_json;
  TokenizerFiles tokenizer_files;
  std::optional<std::string> generation_config_json;
};

// Move-only. Reads are thread-safe.
class GgufFile {
 public:
  // `path`: of a model in several files, of the first. Errors of OpenGgufParts, ReadGgufTokenizer
  // and MakeConfigJson; UNIMPLEMENTED for a tensor that the architectures do not have;
  // INVALID_ARGUMENT for stacks of experts that are none.
  static absl::StatusOr<GgufFile> Open(const std::string& path,
                                       const InputFileOptions& options = {});

  const std::vector<InputFile>& files() const { return files_; }  // at least one
  const GgufTexts& texts() const { return texts_; }
  // Of what Read gives: float32 for quantised tensors, and each expert for itself. `begin` is 0.
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  // Those that a folder has in index_metric.safetensors.
  const std::map<std::string, TensorInfo>& index_metric_tensors() const { return metric_tensors_; }

  // Data of a tensor of either, row-major, little-endian. Beside it, memory for one piece of the
  // file.
  // NOT_FOUND for an unknown name; DATA_LOSS if the file has changed since Open.
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const;
  // The same without unpacking blocks. Errors of Read.
  absl::StatusOr<StoredTensor> ReadStored(const std::string& name) const;
  // SHA-256 over names, types, shapes and stored bytes of all tensors, whatever order, places and
  // files they have. Metadata is not in it.
  absl::StatusOr<std::string> TensorsSha256() const;

 private:
  struct Stored {
    GgufTensor tensor;
    int64_t permuted_heads = 0;  // 0: rows are in order
    bool has_one = false;        // a 1 is in every number; Hugging Face's have none
  };

  explicit GgufFile(std::vector<InputFile> files) : files_(std::move(files)) {}
  absl::Status Present(const GgufHeader& header);
  absl::Status AddTensors(const GgufHeader& header, bool post_norms);
  void AddTensor(const std::string& name, const GgufTensor& tensor, bool index_metric);
  absl::Status AddExperts(const std::string& name, const GgufTensor& stack,
                          const std::string& experts);
  absl::Status TakeOne(const std::string& name);
  absl::Status PermuteHeads(const std::string& name, int64_t heads);
  absl::StatusOr<const Stored*> Find(const std::string& name) const;

  std::vector<InputFile> files_;
  GgufTexts texts_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, TensorInfo> metric_tensors_;
  std::map<std::string, Stored> stored_;  // by Hugging Face's name
};

// What stands for index_metric.safetensors in a file that outlives this.
class GgufIndexMetric final : public TensorReader {
 public:
  explicit GgufIndexMetric(const GgufFile& file) : file_(file) {}

  const std::map<std::string, TensorInfo>& tensors() const override {
    return file_.index_metric_tensors();
  }
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const override {
    return file_.Read(name);
  }
  absl::StatusOr<StoredTensor> ReadStored(const std::string& name) const override {
    return file_.ReadStored(name);
  }

 private:
  const GgufFile& file_;
};

}  // namespace eta
