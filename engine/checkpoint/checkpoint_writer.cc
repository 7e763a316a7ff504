#include "engine/checkpoint/checkpoint_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/files/descriptor.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/safetensors.h"

namespace eta {
namespace {

namespace fs = std::filesystem;

bool IsFloat(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

absl::StatusOr<std::vector<std::byte>> Convert(const std::string& name,
                                               const std::vector<std::byte>& data, DType from,
                                               DType to) {
  const auto count = static_cast<int64_t>(data.size() / SizeOf(from));
  std::vector<std::byte> converted(data.size() / SizeOf(from) * SizeOf(to));
  for (int64_t i = 0; i < count; ++i) {
    const float value = LoadElement(from, data.data(), i);
    StoreElement(to, converted.data(), i, value);
    if (std::isfinite(value) && !std::isfinite(LoadElement(to, converted.data(), i))) {
      return absl::OutOfRangeError(absl::StrCat("tensor ", Quoted(name), ": element ", i,
                                                " is too large for ", std::string(Name(to))));
    }
  }
  return converted;
}

absl::Status Sync(const std::string& path) {
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) {
    return absl::ErrnoToStatus(errno, "the folder cannot be synced");
  }
  return absl::OkStatus();
}

absl::Status WriteText(const std::string& path, std::string_view text) {
  Descriptor fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  while (fd.valid() && !text.empty()) {
    const ssize_t wrote = write(fd.get(), text.data(), text.size());
    if (wrote < 0 && errno != EINTR) fd.Reset();
    if (wrote > 0) text.remove_prefix(static_cast<size_t>(wrote));
  }
  if (fd.valid() && fsync(fd.get()) == 0) return absl::OkStatus();
  const std::string name = path.substr(path.rfind('/') + 1);
  return absl::ErrnoToStatus(errno, absl::StrCat("file ", Quoted(name), " cannot be written"));
}

absl::Status WriteTexts(const std::string& config_json, const CheckpointTexts& contents,
                        const std::string& folder) {
  RETURN_IF_ERROR(WriteText(folder + "/config.json", config_json));
  const TokenizerFiles& tokenizer = contents.tokenizer;
  const std::pair<const char*, const std::optional<std::string>*> texts[] = {
      {"tokenizer.json", &tokenizer.tokenizer_json},
      {"tokenizer.model", &tokenizer.sentencepiece_model},
      {"tokenizer_config.json", &tokenizer.tokenizer_config_json},
      {"chat_template.jinja", &tokenizer.chat_template},
      {"generation_config.json", &contents.generation_config_json}};
  for (const auto& [name, text] : texts) {
    if (*text) RETURN_IF_ERROR(WriteText(absl::StrCat(folder, "/", name), **text));
  }
  return absl::OkStatus();
}

absl::Status WriteTensors(const TensorReader& checkpoint, const std::string& path,
                          std::optional<DType> dtype) {
  const auto written_as = [&](const TensorInfo& info) {
    return dtype && IsFloat(info.dtype) ? *dtype : info.dtype;
  };
  std::map<std::string, TensorShape> shapes;
  for (const auto& [name, info] : checkpoint.tensors()) {
    shapes.emplace(name, TensorShape{written_as(info), info.shape});
  }
  // Where Hugging Face's libraries look for who wrote the file.
  return StreamSafetensors(
      path, {{"format", "pt"}}, shapes,
      [&](const std::string& name,
          std::vector<std::byte>& storage) -> absl::StatusOr<std::span<const std::byte>> {
        ASSIGN_OR_RETURN(auto data, checkpoint.Read(name));
        const TensorInfo& info = checkpoint.tensors().at(name);
        if (written_as(info) != info.dtype) {
          ASSIGN_OR_RETURN(data, Convert(name, data, info.dtype, written_as(info)));
        }
        storage = std::move(data);
        return storage;
      });
}

absl::Status WriteImportRecord(const WeightsDigests& read, const std::string& folder) {
  ImportRecord record;
  record.read = read;
  const auto digest = [&folder](const char* name) -> absl::StatusOr<std::string> {
    const auto file = InputFile::Open(absl::StrCat(folder, "/", name));
    return file.ok() ? file->Sha256Hex() : file.status();
  };
  ASSIGN_OR_RETURN(auto weights, digest("model.safetensors"));
  record.written.weights = {std::move(weights)};
  auto metric = digest("index_metric.safetensors");
  if (metric.ok()) record.written.index_metric = *std::move(metric);
  if (!metric.ok() && !absl::IsNotFound(metric.status())) return metric.status();
  return WriteText(absl::StrCat(folder, "/", kImportRecordFile), ImportRecordToJson(record));
}

}  // namespace

absl::Status WriteCheckpoint(const Checkpoint& checkpoint, const std::string& folder,
                             std::optional<DType> dtype) {
  return WriteCheckpoint(
      checkpoint,
      {.tokenizer = checkpoint.tokenizer_files(),
       .generation_config_json = checkpoint.generation_config_json(),
       .index_metric = checkpoint.index_metric(),
       .import_of = dtype ? std::nullopt : std::optional(checkpoint.weights_digests())},
      folder, dtype, /*replace=*/false);
}

absl::Status WriteCheckpoint(const TensorSource& tensors, const CheckpointTexts& texts,
                             const std::string& folder, std::optional<DType> dtype, bool replace) {
  std::error_code error;
  const fs::path target = fs::absolute(folder, error).lexically_normal();
  const std::string name = target.has_filename() ? target.string() : target.parent_path().string();
  if (!replace && fs::exists(fs::symlink_status(name, error)) &&
      !(fs::is_directory(name, error) && fs::is_empty(name, error))) {
    return absl::AlreadyExistsError("the folder to write is there and is not empty");
  }
  std::string partial = name + ".partial.XXXXXX";
  if (mkdtemp(partial.data()) == nullptr || chmod(partial.c_str(), 0755) != 0) {
    return absl::ErrnoToStatus(errno, "the folder cannot be made");
  }
  absl::Cleanup remove = [&partial, &error] { fs::remove_all(partial, error); };
  RETURN_IF_ERROR(WriteTexts(tensors.config_json(), texts, partial));
  RETURN_IF_ERROR(WriteTensors(tensors, partial + "/model.safetensors", dtype));
  if (texts.index_metric != nullptr) {
    RETURN_IF_ERROR(WriteTensors(*texts.index_metric, partial + "/index_metric.safetensors",
                                 /*dtype=*/std::nullopt));
  }
  if (texts.import_of) RETURN_IF_ERROR(WriteImportRecord(*texts.import_of, partial));
  RETURN_IF_ERROR(Sync(partial));
  if (replace) fs::remove_all(name, error);
  if (rename(partial.c_str(), name.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, "the folder cannot be put in place");
  }
  std::move(remove).Cancel();
  return Sync(fs::path(name).parent_path().string());
}

}  // namespace eta
