#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checked.h"
#include "engine/base/utf8.h"
#include "engine/checkpoint/safetensors.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

// Eight bytes of length and a header of a multiple of eight: data starts aligned for any element.
constexpr size_t kAlignment = 8;

absl::Status CheckTensor(const std::string& name, const TensorToWrite& tensor) {
  const auto invalid = [&name](const std::string& sentence) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), " ", sentence));
  };
  if (FirstInvalidUtf8(name) || name == "__metadata__") return invalid("cannot have this name");
  if (tensor.shape.size() > kSafetensorsMaxRank) return invalid("has over 8 dimensions");
  const auto bytes = CheckedBytes(tensor.shape, SizeOf(tensor.dtype));
  if (!bytes || *bytes != tensor.data.size())
    return invalid("has data that does not fit its shape");
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = write(fd, bytes.data(), std::min<size_t>(bytes.size(), 1 << 30));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return absl::ErrnoToStatus(errno, "safetensors file cannot be written");
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, std::string>& metadata,
                              const std::map<std::string, TensorToWrite>& tensors) {
  if (tensors.size() > kSafetensorsMaxTensors) {
    return absl::InvalidArgumentError("safetensors file would have over 100000 tensors");
  }
  // Widest elements first: every tensor then starts at a multiple of its element size.
  std::vector<std::pair<const std::string*, const TensorToWrite*>> order;
  for (const auto& [name, tensor] : tensors) {
    absl::Status status = CheckTensor(name, tensor);
    if (!status.ok()) return status;
    order.emplace_back(&name, &tensor);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return SizeOf(a.second->dtype) > SizeOf(b.second->dtype);
  });

  nlohmann::json json = nlohmann::json::object();
  for (const auto& [key, value] : metadata) {
    if (FirstInvalidUtf8(key) || FirstInvalidUtf8(value)) {
      return absl::InvalidArgumentError("safetensors metadata is not UTF-8");
    }
    json["__metadata__"][key] = value;
  }
  uint64_t offset = 0;
  for (const auto& [name, tensor] : order) {
    const auto end = CheckedAdd(offset, tensor->data.size());
    if (!end) return absl::InvalidArgumentError("safetensors data overflows 64 bits");
    json[*name] = {{"dtype", std::string(SafetensorsName(tensor->dtype))},
                   {"shape", tensor->shape},
                   {"data_offsets", {offset, *end}}};
    offset = *end;
  }
  std::string header = json.dump();
  header.resize((header.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (header.size() > kSafetensorsMaxHeaderBytes) {
    return absl::InvalidArgumentError("safetensors header would be over 8 MiB");
  }
  std::string length;
  for (size_t i = 0; i < 8; ++i) length += static_cast<char>(uint64_t{header.size()} >> (8 * i));
  header.insert(0, length);

  const std::string partial = path + ".partial";
  const int fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, "safetensors file cannot be created");
  absl::Status status = WriteAll(fd, std::as_bytes(std::span(header)));
  for (const auto& entry : order) {
    if (status.ok()) status = WriteAll(fd, entry.second->data);
  }
  if (status.ok() && fsync(fd) != 0) {
    status = absl::ErrnoToStatus(errno, "safetensors file cannot be synced");
  }
  if (close(fd) != 0 && status.ok()) {
    status = absl::ErrnoToStatus(errno, "safetensors file cannot be closed");
  }
  if (status.ok() && rename(partial.c_str(), path.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, "safetensors file cannot be put in place");
  }
  if (!status.ok()) unlink(partial.c_str());
  return status;
}

}  // namespace eta
