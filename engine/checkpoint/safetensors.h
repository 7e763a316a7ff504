// A safetensors file: names, types and shapes in memory, tensor data read on demand.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/files/input_file.h"
#include "engine/checkpoint/safetensors_header.h"
#include "engine/checkpoint/tensor_reader.h"

namespace eta {

// Move-only. Reads are thread-safe.
class SafetensorsFile final : public TensorReader {
 public:
  // Errors of InputFile::Open and ParseSafetensorsHeader.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path,
                                              const InputFileOptions& options = {});

  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const std::map<std::string, TensorInfo>& tensors() const override { return header_.tensors; }
  const InputFile& file() const { return file_; }

  // Data of one tensor, row-major, little-endian. NOT_FOUND for an unknown name; DATA_LOSS if the
  // file has changed since Open.
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const override;
  // The `size` bytes of it from `begin` on. OUT_OF_RANGE for bytes that it does not have.
  absl::StatusOr<std::vector<std::byte>> ReadPart(const std::string& name, uint64_t begin,
                                                  uint64_t size) const;

 private:
  SafetensorsFile(InputFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  InputFile file_;
  SafetensorsHeader header_;
};

struct TensorToWrite {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// Writes a file that holds `tensors` by name, atomically: the old file or the whole new one. The
// data starts and every tensor lies at a multiple of its element size. INVALID_ARGUMENT for data
// that does not fit shape and dtype, or limits of the format.
absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, std::string>& metadata,
                              const std::map<std::string, TensorToWrite>& tensors);

struct TensorShape {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
};

// The data of the tensor with that name, row-major, little-endian: in `storage` or elsewhere, until
// the next call.
using TensorData = std::function<absl::StatusOr<std::span<const std::byte>>(
    const std::string& name, std::vector<std::byte>& storage)>;

// As WriteSafetensors, with one tensor's data in memory at a time: `data` is asked for each tensor
// once, in the order of the file. Errors of `data`, too.
absl::Status StreamSafetensors(const std::string& path,
                               const std::map<std::string, std::string>& metadata,
                               const std::map<std::string, TensorShape>& tensors,
                               const TensorData& data);

// Index of the first NaN or infinity in an array of `dtype`; nullopt if there is none. Integers
// have none. `data` need not be aligned; a partial last element is not looked at.
std::optional<int64_t> FirstNonFinite(std::span<const std::byte> data, DType dtype);

}  // namespace eta
