// Any files as a checkpoint's folder, and one or two of them as GGUF files: refused, or a
// checkpoint whose every tensor can be read, whole and from the file that the index names, and
// which has the same fingerprint when opened again.
//
// Input: files one after another, each as a line of its name's number and its form, then its
// contents up to a line "----". Form "h": a safetensors header, to which the length is put in front
// and the data that it calls for behind; form "l": a symbolic link to what the contents name; forms
// "w" and "s": nothing, but every user may write the folder, which is sticky with "s"; any other
// form: the bytes as they are.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <system_error>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/import_record.h"
#include "engine/checkpoint/safetensors_header.h"
#include "engine/model/model_config.h"
#include "engine/model/weights/index_metric.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/fuzz/checked_error.h"

namespace {

using eta::fuzz::InputReader;
using eta::fuzz::Require;
using eta::fuzz::RequireReadable;

constexpr uint64_t kMaxDataBytes = 4096;
constexpr std::array<const char*, 16> kNames = {"config.json",
                                                "tokenizer.model",
                                                "model.safetensors",
                                                "model.safetensors.index.json",
                                                "tokenizer.json",
                                                "model-00001-of-00002.safetensors",
                                                "model-00002-of-00002.safetensors",
                                                "other.safetensors",
                                                "index_metric.safetensors",
                                                eta::kImportRecordFile,
                                                "tokenizer_config.json",
                                                "chat_template.jinja",
                                                "generation_config.json",
                                                "model.gguf",
                                                "model-00001-of-00002.gguf",
                                                "model-00002-of-00002.gguf"};

// Where the data of a header's tensors ends, as far as digits in it say: the largest number that is
// not too large.
uint64_t DataBytes(std::string_view header) {
  uint64_t most = 0;
  uint64_t number = 0;
  for (const char c : header) {
    number =
        c >= '0' && c <= '9' ? std::min<uint64_t>(number * 10 + (c - '0'), kMaxDataBytes + 1) : 0;
    if (number <= kMaxDataBytes) most = std::max(most, number);
  }
  return most;
}

std::string Safetensors(std::string_view header) {
  std::string file;
  for (uint64_t rest = header.size(), i = 0; i < 8; ++i, rest >>= 8) {
    file += static_cast<char>(rest & 0xFF);
  }
  file += header;
  const size_t end = header.find("\"data_offsets\"");
  return file.append(end == std::string_view::npos ? 0 : DataBytes(header.substr(end)), '\x3C');
}

std::string_view UntilMark(std::string_view& rest) {
  constexpr std::string_view kMark = "\n----\n";
  const size_t end = std::min(rest.find(kMark), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + kMark.size(), rest.size()));
  return part;
}

// What a record says is what it says when it is written again.
void CheckImportRecord(std::string_view text) {
  const auto record = eta::ParseImportRecord(text);
  if (!record.ok()) return RequireReadable(record.status());
  const auto again = eta::ParseImportRecord(eta::ImportRecordToJson(*record));
  Require(again.ok() && again->read == record->read && again->written == record->written);
}

void WriteFiles(const eta::TempFolder& folder, std::string_view rest) {
  for (const char* name : kNames) unlink((folder.path() + "/" + name).c_str());
  chmod(folder.path().c_str(), 0700);
  while (!rest.empty()) {
    std::string_view part = UntilMark(rest);
    if (part.size() < 3) continue;
    const std::string name = kNames[static_cast<size_t>(part[0] - '0') % kNames.size()];
    const std::string path = folder.path() + "/" + name;
    const char form = part[1];
    part.remove_prefix(3);
    unlink(path.c_str());  // nothing is written through a link
    if (name == eta::kImportRecordFile) CheckImportRecord(part);
    if (form == 'w' || form == 's') {
      chmod(folder.path().c_str(), form == 's' ? 01707 : 0707);
    } else if (form == 'l') {
      std::error_code error;
      std::filesystem::create_symlink(part, path, error);
    } else {
      folder.Write(name, form == 'h' ? Safetensors(part) : std::string(part));
    }
  }
}

// Opens with the digests that it has, and with no others.
void CheckPinned(const eta::Checkpoint& checkpoint, const std::string& path) {
  std::map<std::string, std::string> digests = checkpoint.sha256();
  Require(eta::Checkpoint::Open(path, {.expected_sha256 = digests}).ok());
  const auto last = std::prev(digests.end());
  last->second.front() = last->second.front() == '0' ? '1' : '0';
  RequireReadable(eta::Checkpoint::Open(path, {.expected_sha256 = digests}).status());
  digests.erase(last);
  digests["another"] = "";
  RequireReadable(eta::Checkpoint::Open(path, {.expected_sha256 = digests}).status());
  RequireReadable(eta::Checkpoint::Open(path + "/none").status());
}

void CheckIndexMetric(const eta::ModelConfig& config, const eta::TensorReader& file) {
  const absl::Status fits = eta::ValidateIndexMetric(config, file);
  if (!fits.ok()) return RequireReadable(fits);
  const auto heads = static_cast<size_t>(config.num_kv_heads);
  const auto d = static_cast<size_t>(config.head_dim);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const auto read = eta::ReadIndexMetric(config, file, layer);
    if (!read.ok()) return RequireReadable(read.status());
    Require(read->metric.size() == heads * d * d && read->centre.size() == heads * d);
  }
}

void CheckOpened(const eta::Checkpoint& checkpoint, const std::string& path) {
  for (const auto& [name, info] : checkpoint.tensors()) {
    const auto bytes = checkpoint.Read(name);
    Require(bytes.ok() && bytes->size() == info.bytes());
  }
  Require(!checkpoint.Read("no such tensor").ok());
  const auto again = eta::Checkpoint::Open(path);
  Require(again.ok() && again->files_fingerprint() == checkpoint.files_fingerprint());
  CheckPinned(checkpoint, path);

  const auto config = eta::ParseModelConfig(checkpoint.config_json());
  if (!config.ok()) return RequireReadable(checkpoint.Naming(config.status()));
  Require(checkpoint.Naming(config.status()).ok());
  if (config->num_layers <= 8) {
    const absl::Status fits = eta::ValidateTensors(*config, checkpoint.tensors());
    if (!fits.ok()) RequireReadable(fits);
  }
  if (checkpoint.index_metric() != nullptr && config->num_layers <= 8) {
    CheckIndexMetric(*config, *checkpoint.index_metric());
  }
  if (config->vocab_size > 4096) return;
  const auto tokenizer = eta::Tokenizer::Load(checkpoint.tokenizer_files(), *config);
  if (!tokenizer.ok()) RequireReadable(tokenizer.status());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const eta::TempFolder folder(eta::FastParent());
  WriteFiles(folder, {reinterpret_cast<const char*>(data), size});
  for (const char* const name : {"", "/model.gguf", "/model-00001-of-00002.gguf"}) {
    const std::string path = folder.path() + name;
    const auto checkpoint = eta::Checkpoint::Open(path);
    if (checkpoint.ok()) {
      CheckOpened(*checkpoint, path);
    } else {
      RequireReadable(checkpoint.status());
    }
  }
  return 0;
}
