// lint: untrusted-input
#include "training/commands/tokenizer_folder.h"

#include <cstdint>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/files/input_file.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/piece_table.h"

namespace eta::training {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{64} << 20;

// Absent where there is no such file.
absl::Status ReadFile(const std::string& folder, const char* name,
                      std::optional<std::string>& contents) {
  const absl::StatusOr<InputFile> file = InputFile::Open(folder + "/" + name);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  if (!file.ok()) return file.status();
  ASSIGN_OR_RETURN(contents, file->ReadAll(kMaxBytes));
  return absl::OkStatus();
}

absl::Status SetVocabulary(const TokenizerFiles& files, ModelConfig& config) {
  if (config.vocab_size > 0) return absl::OkStatus();
  if (files.tokenizer_json) {
    return InvalidField("vocab_size", "is needed: a tokenizer.json may have fewer tokens");
  }
  ASSIGN_OR_RETURN(const PieceTable table, ParsePieceTable(*files.sentencepiece_model));
  config.vocab_size = static_cast<int32_t>(table.pieces.size());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadedTokenizer> LoadTokenizerFolder(const std::string& folder,
                                                    ModelConfig& config) {
  LoadedTokenizer loaded;
  TokenizerFiles& files = loaded.files;
  RETURN_IF_ERROR(ReadFile(folder, "tokenizer.json", files.tokenizer_json));
  if (!files.tokenizer_json) {
    RETURN_IF_ERROR(ReadFile(folder, "tokenizer.model", files.sentencepiece_model));
  }
  RETURN_IF_ERROR(ReadFile(folder, "tokenizer_config.json", files.tokenizer_config_json));
  RETURN_IF_ERROR(ReadFile(folder, "chat_template.jinja", files.chat_template));
  if (!files.tokenizer_json && !files.sentencepiece_model) {
    return absl::NotFoundError(
        "tokenizer: the folder has no tokenizer.json and no tokenizer.model");
  }
  RETURN_IF_ERROR(SetVocabulary(files, config));
  ASSIGN_OR_RETURN(
      loaded.fingerprint,
      Sha256Hex(files.tokenizer_json ? *files.tokenizer_json : *files.sentencepiece_model));
  ASSIGN_OR_RETURN(loaded.tokenizer, Tokenizer::Load(files, config));
  const std::vector<int32_t>& beginning = loaded.tokenizer->beginning();
  config.bos_id = beginning.empty() ? -1 : beginning.front();
  config.eos_ids = loaded.tokenizer->eos_ids();
  return loaded;
}

}  // namespace eta::training
