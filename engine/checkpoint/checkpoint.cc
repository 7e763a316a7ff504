// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/checkpoint.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/base/error.h"
#include "engine/base/json/json_check.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/text_model.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kConfig[] = "config.json";
constexpr char kSentencePiece[] = "tokenizer.model";
constexpr char kTokenizer[] = "tokenizer.json";
constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr char kChatTemplate[] = "chat_template.jinja";
constexpr char kGenerationConfig[] = "generation_config.json";
constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr char kIndexMetric[] = "index_metric.safetensors";
constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;
constexpr size_t kMaxConfigDepth = 16;
constexpr uint64_t kMaxTokenizerConfigBytes = uint64_t{16} << 20;
constexpr size_t kMaxTokenizerConfigDepth = 16;
constexpr uint64_t kMaxChatTemplateBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxTokenizerBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxIndexBytes = uint64_t{16} << 20;
constexpr size_t kMaxShards = 1000;

// Path of `name` with every symbolic link resolved, if that lies in `folder` (itself resolved).
absl::StatusOr<std::string> Locate(const fs::path& folder, const std::string& name) {
  std::error_code error;
  const fs::path path = fs::canonical(folder / name, error);
  if (error) return absl::NotFoundError(absl::StrCat("file ", Quoted(name), " does not exist"));
  const auto parts = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  if (parts.first != folder.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("file ", Quoted(name), " is a link to outside the checkpoint's folder"));
  }
  return path.string();
}

// Who may put files there chooses what is loaded, whatever the modes of the files. A file system
// that is mounted read-only is nobody's to write. In a sticky folder of root, such as /tmp, or of
// this process's user nobody else may replace a `file` of either; the folder's own user always may.
// `what`: for an error.
absl::Status CheckFolder(const fs::path& folder, const char* what, const fs::path& file = {}) {
  struct stat info = {};
  struct statvfs mounted = {};
  if (stat(folder.c_str(), &info) != 0 || statvfs(folder.c_str(), &mounted) != 0) {
    return absl::NotFoundError(absl::StrCat(what, " cannot be read"));
  }
  if ((info.st_mode & S_IWOTH) == 0 || (mounted.f_flag & ST_RDONLY) != 0) return absl::OkStatus();
  const auto trusted = [](uid_t user) { return user == geteuid() || user == 0; };
  struct stat of_file = {};
  if ((info.st_mode & S_ISVTX) != 0 && trusted(info.st_uid) && !file.empty() &&
      lstat(file.c_str(), &of_file) == 0 && trusted(of_file.st_uid)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(what, " may be written by every user (mode o+w)"));
}

bool IsShardName(const std::string& name) {
  constexpr std::string_view kSuffix = ".safetensors";
  const auto allowed = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  return name.size() > kSuffix.size() && name.size() <= 255 && name.front() != '.' &&
         std::string_view(name).substr(name.size() - kSuffix.size()) == kSuffix &&
         std::all_of(name.begin(), name.end(), allowed);
}

// Takes the object weight_map out of a valid index; false at a value in it that is no shard's name.
// Not by the library's tree of values, whose destructor allocates: where that fails the process
// ends.
class ShardIndexReader : public nlohmann::json_sax<Json> {
 public:
  std::map<std::string, std::string>& index() { return index_; }
  // The last that was read.
  const std::string& tensor() const { return tensor_; }

  bool null() override { return Other(); }
  bool boolean(bool) override { return Other(); }
  bool number_integer(number_integer_t) override { return Other(); }
  bool number_unsigned(number_unsigned_t) override { return Other(); }
  bool number_float(number_float_t, const string_t&) override { return Other(); }
  bool binary(binary_t&) override { return Other(); }
  bool string(string_t& value) override {
    if (!InMap()) return true;
    return IsShardName(value) && index_.emplace(tensor_, value).second;
  }
  bool start_object(size_t) override { return Open(); }
  bool key(string_t& key) override {
    if (depth_ == 1) in_map_ = key == "weight_map";
    if (InMap()) tensor_ = key;
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override {
    if (depth_ == 1) in_map_ = false;
    return Open();
  }
  bool end_array() override { return Close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool InMap() const { return depth_ == 2 && in_map_; }
  bool Other() const { return !InMap(); }
  bool Open() {
    if (InMap()) return false;
    ++depth_;
    return true;
  }
  bool Close() {
    --depth_;
    return true;
  }

  int depth_ = 0;        // of open objects and arrays
  bool in_map_ = false;  // the first of them is the value of weight_map
  std::map<std::string, std::string> index_;
  std::string tensor_;
};

// Hashes a file and holds the digest against the allow-list.
absl::Status CheckFile(const InputFile& file, const std::string& name,
                       const CheckpointOptions& options,
                       std::map<std::string, std::string>& sha256) {
  ASSIGN_OR_RETURN(const auto digest, file.Sha256Hex());
  sha256[name] = digest;
  if (options.expected_sha256.empty()) return absl::OkStatus();
  const auto expected = options.expected_sha256.find(name);
  if (expected == options.expected_sha256.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("file ", Quoted(name), " is not on the list of expected SHA-256 digests"));
  }
  if (absl::AsciiStrToLower(expected->second) != digest) {
    return absl::FailedPreconditionError(
        absl::StrCat("file ", Quoted(name), " does not have the expected SHA-256 digest"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseShardIndex(std::string_view text) {
  RETURN_IF_ERROR(CheckJson("shard index", text, {kMaxIndexBytes, 4}));
  ShardIndexReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shard index gives tensor ", Quoted(reader.tensor()), " a file name that is not allowed"));
  }
  if (reader.index().empty()) {
    return absl::InvalidArgumentError("shard index has no weight_map");
  }
  return std::move(reader.index());
}

absl::StatusOr<std::optional<std::string>> ParseChatTemplate(std::string_view tokenizer_config) {
  ASSIGN_OR_RETURN(const auto tree,
                   ParseStrictJson(kTokenizerConfig, tokenizer_config, kMaxTokenizerConfigBytes,
                                   kMaxTokenizerConfigDepth));
  const Json& root = tree.root();
  const auto found = root.find("chat_template");
  if (found == root.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  const auto text = [](const Json& entry, const char* field) -> const std::string* {
    const auto value = entry.is_object() ? entry.find(field) : entry.end();
    return value == entry.end() || !value->is_string() ? nullptr
                                                       : value->get_ptr<const std::string*>();
  };
  if (found->is_array()) {
    for (const Json& entry : *found) {
      const std::string* name = text(entry, "name");
      const std::string* source = text(entry, "template");
      if (name == nullptr || source == nullptr) break;
      if (*name == "default") return *source;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      kTokenizerConfig,
      ": chat_template must be a text, or a list of objects with name and template of which one "
      "has the name default"));
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& path,
                                            const CheckpointOptions& options) {
  std::error_code error;
  const fs::path root = fs::canonical(path, error);
  if (error || !(fs::is_directory(root, error) || fs::is_regular_file(root, error))) {
    return absl::NotFoundError("the checkpoint's folder or file does not exist");
  }
  if (fs::is_directory(root, error)) return OpenFolder(root.string(), options);
  return OpenGguf(path, options);
}

absl::StatusOr<Checkpoint> Checkpoint::OpenGguf(const std::string& path,
                                                const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(auto file, GgufFile::Open(path));
  Checkpoint checkpoint;
  for (const InputFile& part : file.files()) {
    std::error_code error;
    const fs::path place = fs::canonical(fs::path(path).replace_filename(part.name()), error);
    if (error) return absl::NotFoundError(absl::StrCat("file ", Quoted(part.name()), " is gone"));
    RETURN_IF_ERROR(CheckFolder(place.parent_path(), "the folder of the checkpoint's file", place));
    RETURN_IF_ERROR(CheckFile(part, part.name(), options, checkpoint.sha256_));
  }
  checkpoint.config_json_ = file.texts().config_json;
  checkpoint.tokenizer_files_ = file.texts().tokenizer_files;
  checkpoint.generation_config_json_ = file.texts().generation_config_json;
  checkpoint.tensors_ = file.tensors();
  ASSIGN_OR_RETURN(const auto tensors, file.TensorsSha256());
  checkpoint.weights_.weights = {tensors};
  checkpoint.gguf_ = std::make_unique<const GgufFile>(std::move(file));
  if (!checkpoint.gguf_->index_metric_tensors().empty()) {
    checkpoint.index_metric_ = std::make_unique<const GgufIndexMetric>(*checkpoint.gguf_);
  }
  RETURN_IF_ERROR(checkpoint.SetFingerprints());
  return checkpoint;
}

absl::Status Checkpoint::Naming(const absl::Status& status) const {
  if (gguf_ == nullptr || status.ok() || !GetErrorDetail(status).reason.empty()) return status;
  std::vector<std::pair<std::string, std::string>> names;
  for (const char* name :
       {kConfig, kTokenizerConfig, kGenerationConfig, "tokenizer.json", "tokenizer model"}) {
    names.emplace_back(name, absl::StrCat("the GGUF file (read as ", name, ")"));
  }
  return {status.code(), absl::StrReplaceAll(status.message(), names)};
}

// Fills a checkpoint from a folder. Each file that is read is hashed and held against the
// allow-list.
class Checkpoint::FolderReader {
 public:
  FolderReader(fs::path root, const CheckpointOptions& options, Checkpoint& checkpoint)
      : root_(std::move(root)), options_(options), checkpoint_(checkpoint) {}

  absl::Status ReadTexts() {
    ASSIGN_OR_RETURN(checkpoint_.config_json_, ReadText(kConfig, kMaxConfigBytes));
    TokenizerFiles& tokenizer = checkpoint_.tokenizer_files_;
    RETURN_IF_ERROR(ReadOptional(kTokenizer, kMaxTokenizerBytes, tokenizer.tokenizer_json));
    if (!tokenizer.tokenizer_json) {
      RETURN_IF_ERROR(
          ReadOptional(kSentencePiece, kMaxTokenizerBytes, tokenizer.sentencepiece_model));
    }
    RETURN_IF_ERROR(
        ReadOptional(kTokenizerConfig, kMaxTokenizerConfigBytes, tokenizer.tokenizer_config_json));
    RETURN_IF_ERROR(ReadOptional(kChatTemplate, kMaxChatTemplateBytes, tokenizer.chat_template));
    if (!tokenizer.chat_template && tokenizer.tokenizer_config_json) {
      ASSIGN_OR_RETURN(tokenizer.chat_template,
                       ParseChatTemplate(*tokenizer.tokenizer_config_json));
    }
    return ReadOptional(kGenerationConfig, kMaxConfigBytes, checkpoint_.generation_config_json_);
  }

  absl::Status ReadTensors() {
    RETURN_IF_ERROR(FindShards());
    for (const std::string& shard : shards_) RETURN_IF_ERROR(AddShard(shard));
    for (const auto& entry : index_) {
      if (!checkpoint_.tensors_.contains(entry.first)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "shard index names tensor ", Quoted(entry.first), ", which its file does not hold"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadIndexMetric() {
    if (!Has(kIndexMetric)) return absl::OkStatus();
    if (shards_.contains(kIndexMetric)) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard index gives tensors to file ", Quoted(kIndexMetric)));
    }
    ASSIGN_OR_RETURN(auto opened, OpenTensors(kIndexMetric));
    checkpoint_.index_metric_ = std::make_unique<const SafetensorsFile>(std::move(opened));
    checkpoint_.weights_.index_metric = checkpoint_.sha256_.at(kIndexMetric);
    return absl::OkStatus();
  }

  // After the tensors and the index metric.
  absl::Status SetWeightsDigests() {
    WeightsDigests& weights = checkpoint_.weights_;
    for (const std::string& shard : shards_) {
      weights.weights.push_back(checkpoint_.sha256_.at(shard));
    }
    std::sort(weights.weights.begin(), weights.weights.end());
    std::optional<std::string> import_record;
    RETURN_IF_ERROR(ReadOptional(kImportRecordFile, kMaxConfigBytes, import_record));
    if (!import_record) return absl::OkStatus();
    ASSIGN_OR_RETURN(auto record, ParseImportRecord(*import_record));
    if (record.written == weights) weights = std::move(record.read);
    return absl::OkStatus();
  }

 private:
  bool Has(const std::string& name) const {
    std::error_code error;
    return fs::exists(fs::symlink_status(root_ / name, error));
  }

  absl::StatusOr<std::string> ReadText(const std::string& name, uint64_t max_bytes) {
    ASSIGN_OR_RETURN(const auto path, Locate(root_, name));
    ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
    ASSIGN_OR_RETURN(auto text, file.ReadAll(max_bytes));
    RETURN_IF_ERROR(CheckFile(file, name, options_, checkpoint_.sha256_));
    return text;
  }

  // Where the file is there.
  absl::Status ReadOptional(const std::string& name, uint64_t max_bytes,
                            std::optional<std::string>& text) {
    if (!Has(name)) return absl::OkStatus();
    ASSIGN_OR_RETURN(text, ReadText(name, max_bytes));
    return absl::OkStatus();
  }

  absl::StatusOr<SafetensorsFile> OpenTensors(const std::string& name) {
    ASSIGN_OR_RETURN(const auto path, Locate(root_, name));
    ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path));
    RETURN_IF_ERROR(CheckFile(file.file(), name, options_, checkpoint_.sha256_));
    return file;
  }

  // The files with tensors, and which tensor is in which: of one file nothing.
  absl::Status FindShards() {
    std::error_code error;
    if (fs::exists(root_ / kSingleFile, error) || !fs::exists(root_ / kIndex, error)) {
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const auto text, ReadText(kIndex, kMaxIndexBytes));
    ASSIGN_OR_RETURN(index_, ParseShardIndex(text));
    shards_.clear();
    for (const auto& entry : index_) shards_.insert(entry.second);
    if (shards_.size() > kMaxShards) {
      return absl::InvalidArgumentError("shard index names over 1000 files");
    }
    return absl::OkStatus();
  }

  absl::Status AddShard(const std::string& shard) {
    ASSIGN_OR_RETURN(auto opened, OpenTensors(shard));
    checkpoint_.files_.push_back(std::move(opened));
    const size_t file = checkpoint_.files_.size() - 1;
    for (const auto& [name, info] : checkpoint_.files_[file].tensors()) {
      if (!index_.empty()) {
        const auto entry = index_.find(name);
        if (entry == index_.end() || entry->second != shard) {
          return absl::InvalidArgumentError(absl::StrCat(
              "shard index does not give tensor ", Quoted(name), " to the file that holds it"));
        }
      }
      checkpoint_.tensors_.emplace(name, info);
      checkpoint_.places_.emplace(name, Place{file, name});
    }
    return absl::OkStatus();
  }

  const fs::path root_;
  const CheckpointOptions& options_;
  Checkpoint& checkpoint_;
  std::set<std::string> shards_ = {kSingleFile};
  std::map<std::string, std::string> index_;  // tensor -> file; empty: one file
};

absl::StatusOr<Checkpoint> Checkpoint::OpenFolder(const std::string& folder,
                                                  const CheckpointOptions& options) {
  RETURN_IF_ERROR(CheckFolder(folder, "the checkpoint's folder"));
  Checkpoint checkpoint;
  FolderReader reader(folder, options, checkpoint);
  RETURN_IF_ERROR(reader.ReadTexts());
  RETURN_IF_ERROR(reader.ReadTensors());
  // Who reads the model's shape refuses what is not JSON.
  const bool is_json =
      CheckJson(kConfig, checkpoint.config_json_, {kMaxConfigBytes, kMaxConfigDepth}).ok();
  if (is_json) RETURN_IF_ERROR(checkpoint.PresentTextModel());
  ASSIGN_OR_RETURN(checkpoint.stacks_, ExpertStacks::Present(checkpoint.tensors_));
  if (is_json) RETURN_IF_ERROR(checkpoint.PresentQuantized());
  RETURN_IF_ERROR(reader.ReadIndexMetric());
  RETURN_IF_ERROR(reader.SetWeightsDigests());
  RETURN_IF_ERROR(checkpoint.SetFingerprints());
  return checkpoint;
}

absl::Status Checkpoint::SetFingerprints() {
  std::string digests;
  for (const auto& [name, digest] : sha256_) absl::StrAppend(&digests, digest, "  ", name, "\n");
  ASSIGN_OR_RETURN(files_fingerprint_, Sha256Hex(digests));
  const TokenizerFiles& files = tokenizer_files_;
  ASSIGN_OR_RETURN(tokenizer_fingerprint_,
                   Sha256Hex(files.tokenizer_json        ? *files.tokenizer_json
                             : files.sentencepiece_model ? *files.sentencepiece_model
                                                         : std::string_view()));
  return absl::OkStatus();
}

absl::Status Checkpoint::PresentTextModel() {
  ASSIGN_OR_RETURN(auto text, TextModelConfig(config_json_));
  if (!text) return absl::OkStatus();
  config_json_ = *std::move(text);
  ASSIGN_OR_RETURN(const auto names, TextModelNames(tensors_));
  left_out_tensors_ = tensors_.size() - names.size();
  std::map<std::string, TensorInfo> tensors;
  std::map<std::string, Place> places;
  for (const auto& [own, of_file] : names) {
    tensors.emplace(own, tensors_.at(of_file));
    places.emplace(own, places_.at(of_file));
  }
  tensors_ = std::move(tensors);
  places_ = std::move(places);
  return absl::OkStatus();
}

absl::Status Checkpoint::PresentQuantized() {
  const JsonTree tree(Json::parse(config_json_, nullptr, false));
  const auto found = tree.root().find("quantization_config");
  if (found == tree.root().end() || found->is_null()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto quantization, ParseQuantization(*found));
  if (quantization.form != Quantization::Form::kMxfp4) {
    ASSIGN_OR_RETURN(quantized_, QuantizedTensors::Present(quantization, tensors_));
  }
  // From here on the tensors are numbers, so that who writes them writes a model that fits.
  Json without = tree.root();
  without.erase("quantization_config");
  const JsonTree rest(std::move(without));
  config_json_ = rest.root().dump();
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint::Place> Checkpoint::PlaceOf(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) {
    return absl::NotFoundError(absl::StrCat("tensor ", Quoted(name), " does not exist"));
  }
  return found->second;
}

absl::StatusOr<std::vector<std::byte>> Checkpoint::ReadFromFile(const std::string& name) const {
  ASSIGN_OR_RETURN(const Place place, PlaceOf(name));
  return files_[place.file].Read(place.name);
}

absl::StatusOr<std::vector<std::byte>> Checkpoint::ReadPartFromFile(const std::string& name,
                                                                    uint64_t begin,
                                                                    uint64_t size) const {
  ASSIGN_OR_RETURN(const Place place, PlaceOf(name));
  return files_[place.file].ReadPart(place.name, begin, size);
}

absl::StatusOr<std::vector<std::byte>> Checkpoint::Read(const std::string& name) const {
  if (gguf_) return gguf_->Read(name);
  if (stacks_.Has(name)) {
    return stacks_.ReadNumbers(name, std::bind_front(&Checkpoint::ReadPartFromFile, this));
  }
  if (!quantized_ || !quantized_->Has(name)) return ReadFromFile(name);
  return quantized_->ReadFloats(name,
                                [this](const std::string& file) { return ReadFromFile(file); });
}

absl::StatusOr<StoredTensor> Checkpoint::ReadStored(const std::string& name) const {
  if (stacks_.Has(name)) {
    return stacks_.ReadStored(name, std::bind_front(&Checkpoint::ReadPartFromFile, this));
  }
  if (quantized_ && quantized_->Has(name)) {
    return quantized_->ReadStored(name,
                                  [this](const std::string& file) { return ReadFromFile(file); });
  }
  return gguf_ ? gguf_->ReadStored(name) : TensorReader::ReadStored(name);
}

}  // namespace eta
