#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checked.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/checkpoint/safetensors.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

// Eight bytes of length and a header of a multiple of eight: data starts aligned for any element.
constexpr size_t kAlignment = 8;

absl::Status InvalidTensor(const std::string& name, const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), " ", sentence));
}

absl::Status UnfitData(const std::string& name) {
  return InvalidTensor(name, "has data that does not fit its shape");
}

// Bytes of its data.
absl::StatusOr<uint64_t> CheckTensor(const std::string& name, const TensorShape& tensor) {
  if (FirstInvalidUtf8(name) || name == "__metadata__") {
    return InvalidTensor(name, "cannot have this name");
  }
  if (tensor.shape.size() > kSafetensorsMaxRank) {
    return InvalidTensor(name, "has over 8 dimensions");
  }
  const auto bytes = CheckedBytes(tensor.shape, SizeOf(tensor.dtype));
  if (!bytes) return UnfitData(name);
  return *bytes;
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

struct PlacedTensor {
  const std::string* name;
  const TensorShape* tensor;
  uint64_t bytes;
};

// Widest elements first: every tensor then starts at a multiple of its element size.
absl::StatusOr<std::vector<PlacedTensor>> Order(const std::map<std::string, TensorShape>& tensors) {
  std::vector<PlacedTensor> order;
  for (const auto& [name, tensor] : tensors) {
    ASSIGN_OR_RETURN(const auto bytes, CheckTensor(name, tensor));
    order.push_back({&name, &tensor, bytes});
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return SizeOf(a.tensor->dtype) > SizeOf(b.tensor->dtype);
  });
  return order;
}

absl::StatusOr<std::string> MakeHeader(const std::map<std::string, std::string>& metadata,
                                       const std::vector<PlacedTensor>& order) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [key, value] : metadata) {
    if (FirstInvalidUtf8(key) || FirstInvalidUtf8(value)) {
      return absl::InvalidArgumentError("safetensors metadata is not UTF-8");
    }
    json["__metadata__"][key] = value;
  }
  uint64_t offset = 0;
  for (const PlacedTensor& placed : order) {
    const auto end = CheckedAdd(offset, placed.bytes);
    if (!end) return absl::InvalidArgumentError("safetensors data overflows 64 bits");
    json[*placed.name] = {{"dtype", std::string(SafetensorsName(placed.tensor->dtype))},
                          {"shape", placed.tensor->shape},
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
  return length + header;
}

absl::Status WriteInOrder(int fd, const std::vector<PlacedTensor>& order, const TensorData& data) {
  std::vector<std::byte> storage;
  for (const PlacedTensor& placed : order) {
    ASSIGN_OR_RETURN(const auto bytes, data(*placed.name, storage));
    if (bytes.size() != placed.bytes) return UnfitData(*placed.name);
    RETURN_IF_ERROR(WriteAll(fd, bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StreamSafetensors(const std::string& path,
                               const std::map<std::string, std::string>& metadata,
                               const std::map<std::string, TensorShape>& tensors,
                               const TensorData& data) {
  if (tensors.size() > kSafetensorsMaxTensors) {
    return absl::InvalidArgumentError("safetensors file would have over 100000 tensors");
  }
  ASSIGN_OR_RETURN(const auto order, Order(tensors));
  ASSIGN_OR_RETURN(const auto header, MakeHeader(metadata, order));

  const std::string partial = path + ".partial";
  const int fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, "safetensors file cannot be created");
  absl::Status status = WriteAll(fd, std::as_bytes(std::span(header)));
  if (status.ok()) status = WriteInOrder(fd, order, data);
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

absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, std::string>& metadata,
                              const std::map<std::string, TensorToWrite>& tensors) {
  std::map<std::string, TensorShape> shapes;
  for (const auto& [name, tensor] : tensors) {
    shapes.emplace(name, TensorShape{tensor.dtype, tensor.shape});
    ASSIGN_OR_RETURN(const auto bytes, CheckTensor(name, shapes.at(name)));
    if (bytes != tensor.data.size()) return UnfitData(name);
  }
  return StreamSafetensors(
      path, metadata, shapes,
      [&tensors](const std::string& name, std::vector<std::byte>&)
          -> absl::StatusOr<std::span<const std::byte>> { return tensors.at(name).data; });
}

}  // namespace eta
