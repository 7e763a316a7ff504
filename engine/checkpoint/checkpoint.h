// A model: a folder, or a GGUF file or several (gguf/gguf_parts.h).
//
// A folder has config.json, a tokenizer, and model.safetensors or, sharded,
// model.safetensors.index.json ({"weight_map": {"tensor": "file", ...}}) with the files it names.
// The tokenizer is tokenizer.json or, where there is none, tokenizer.model; a model with neither
// has no text. These may be there too: tokenizer_config.json, chat_template.jinja,
// generation_config.json, index_metric.safetensors, eta_import.json. A GGUF file is presented as
// the same files, made from its metadata, and as tensors by the same names.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/expert_stacks.h"
#include "engine/checkpoint/gguf/gguf_file.h"
#include "engine/checkpoint/import_record.h"
#include "engine/checkpoint/quantized/quantized_tensors.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/checkpoint/tokenizer_files.h"

namespace eta {

struct CheckpointOptions {
  // File name -> SHA-256 in hexadecimal. If not empty, every file that is loaded must be listed
  // and match.
  std::map<std::string, std::string> expected_sha256;
};

// Move-only. Reads are thread-safe.
class Checkpoint final : public TensorSource {
 public:
  // `path`: of a folder, or of a GGUF file, whatever it is called, of several the first. Reads
  // every file to hash it, a GGUF file twice: whole, and its tensors by name. Nothing outside the
  // folder is read, symbolic links followed. NOT_FOUND for a missing file; INVALID_ARGUMENT for a
  // damaged or misleading index and for files outside the folder; FAILED_PRECONDITION for a digest
  // that is not the expected one, and for a file that every user may write, or its folder (but for
  // a GGUF file in a sticky one, both of root or of this process's user); errors of
  // ParseSafetensorsHeader and GgufFile::Open.
  static absl::StatusOr<Checkpoint> Open(const std::string& path,
                                         const CheckpointOptions& options = {});

  // Without quantization_config, once tensors() are what they stand for. Of a model that also sees:
  // its text model's, and so are the names of tensors().
  const std::string& config_json() const override { return config_json_; }
  // Of tokenizer.json and tokenizer.model only the one that counts is there. A GGUF file may have
  // none.
  const TokenizerFiles& tokenizer_files() const { return tokenizer_files_; }
  // How a chat becomes a text: chat_template.jinja; else chat_template of tokenizer_config.json,
  // which is a text or a list of them by name, of which "default" counts.
  const std::optional<std::string>& chat_template() const { return tokenizer_files_.chat_template; }
  const std::optional<std::string>& generation_config_json() const {
    return generation_config_json_;
  }

  // The same error; of a GGUF file, it says that the files of a folder which it names are how that
  // file was read.
  absl::Status Naming(const absl::Status& status) const;

  // Of all files together. `begin` and `end` count within the tensor's own file. A tensor that is
  // quantised is float32 here, and its scales are not there.
  const std::map<std::string, TensorInfo>& tensors() const override { return tensors_; }
  // How many tensors of the files are of a vision tower, and are not there.
  size_t left_out_tensors() const { return left_out_tensors_; }

  // As SafetensorsFile's or GgufFile's.
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const override;
  absl::StatusOr<StoredTensor> ReadStored(const std::string& name) const override;

  // index_metric.safetensors, or the tensors of a GGUF file that stand for it. They are not among
  // tensors(); whether they fit the model, the model says.
  const TensorReader* index_metric() const override { return index_metric_.get(); }

  // SHA-256 over the names and full contents of all files, 64 hexadecimal digits. Of the folder:
  // ModelFingerprint (engine/model/model_fingerprint.h) is of the model.
  const std::string& files_fingerprint() const { return files_fingerprint_; }
  // SHA-256 of each file with weights, and of index_metric.safetensors. Of a GGUF file one digest
  // of all its tensors. Of a folder whose import record holds, those of the model that it was
  // written from.
  const WeightsDigests& weights_digests() const { return weights_; }
  const std::map<std::string, std::string>& sha256() const { return sha256_; }  // by file name
  // SHA-256 of the tokenizer's file that counts: of a GGUF file, that which is made of its
  // vocabulary; of nothing where there is none.
  const std::string& tokenizer_fingerprint() const { return tokenizer_fingerprint_; }

 private:
  class FolderReader;

  struct Place {
    size_t file = 0;   // index into files_
    std::string name;  // the tensor's in there
  };

  Checkpoint() = default;
  static absl::StatusOr<Checkpoint> OpenFolder(const std::string& folder,
                                               const CheckpointOptions& options);
  static absl::StatusOr<Checkpoint> OpenGguf(const std::string& path,
                                             const CheckpointOptions& options);
  absl::Status SetFingerprints();
  // Where config.json, which is JSON, is of a model that also sees.
  absl::Status PresentTextModel();
  // Where it says that weights are quantised.
  absl::Status PresentQuantized();
  // Of the folder's files, as they have it.
  absl::StatusOr<Place> PlaceOf(const std::string& name) const;
  absl::StatusOr<std::vector<std::byte>> ReadFromFile(const std::string& name) const;
  absl::StatusOr<std::vector<std::byte>> ReadPartFromFile(const std::string& name, uint64_t begin,
                                                          uint64_t size) const;

  std::string config_json_;
  TokenizerFiles tokenizer_files_;
  std::optional<std::string> generation_config_json_;
  std::vector<SafetensorsFile> files_;
  std::unique_ptr<const GgufFile> gguf_;              // the only files then
  std::unique_ptr<const TensorReader> index_metric_;  // may read from gguf_
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, Place> places_;  // of tensors of the files, by the text model's names
  size_t left_out_tensors_ = 0;
  std::optional<QuantizedTensors> quantized_;
  ExpertStacks stacks_;
  std::map<std::string, std::string> sha256_;
  std::string files_fingerprint_;
  WeightsDigests weights_;
  std::string tokenizer_fingerprint_;
};

// {"weight_map": ...} as tensor -> file name. INVALID_ARGUMENT for anything malformed and for file
// names that could leave the folder or are not *.safetensors.
absl::StatusOr<std::map<std::string, std::string>> ParseShardIndex(std::string_view json);

// The template for chats that a tokenizer_config.json holds; absent: it has none. INVALID_ARGUMENT
// for anything malformed.
absl::StatusOr<std::optional<std::string>> ParseChatTemplate(std::string_view tokenizer_config);

}  // namespace eta
