// lint: untrusted-input
#include "engine/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

// A number is NaN or infinite when its exponent bits are all ones.
template <typename Bits>
std::optional<int64_t> FirstAllOnes(std::span<const std::byte> data, Bits exponent) {
  const size_t count = data.size() / sizeof(Bits);
  constexpr size_t kRun = 4096;
  const auto is_bad = [&](size_t i) -> bool {
    Bits bits;
    // cannot wrap: i counts what is in memory
    std::memcpy(&bits, data.data() + i * sizeof(Bits), sizeof(Bits));
    return (bits & exponent) == exponent;
  };
  for (size_t begin = 0; begin < count; begin += kRun) {
    const size_t end = std::min(begin + kRun, count);
    Bits any = 0;  // without a branch, so that the loop becomes vector code
    for (size_t i = begin; i < end; ++i) any |= static_cast<Bits>(is_bad(i));
    if (any == 0) continue;
    for (size_t i = begin; i < end; ++i) {
      if (is_bad(i)) return static_cast<int64_t>(i);
    }
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path,
                                                      const InputFileOptions& options) {
  ASSIGN_OR_RETURN(auto file, InputFile::Open(path, options));
  const auto in_file = [&file](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat("file ", Quoted(file.name()), ": ", status.message()));
  };
  std::string bytes(std::min<uint64_t>(8, file.size()), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  const auto length = SafetensorsHeaderLength(bytes, file.size());
  if (!length.ok()) return in_file(length.status());
  bytes.resize(std::min(8 + *length, file.size()));
  RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  auto header = ParseSafetensorsHeader(bytes, file.size());
  if (!header.ok()) return in_file(header.status());
  return SafetensorsFile(std::move(file), *std::move(header));
}

absl::StatusOr<std::vector<std::byte>> SafetensorsFile::Read(const std::string& name) const {
  const auto it = header_.tensors.find(name);
  return ReadPart(name, 0, it == header_.tensors.end() ? 0 : it->second.bytes());
}

absl::StatusOr<std::vector<std::byte>> SafetensorsFile::ReadPart(const std::string& name,
                                                                 uint64_t begin,
                                                                 uint64_t size) const {
  const auto it = header_.tensors.find(name);
  if (it == header_.tensors.end()) {
    return absl::NotFoundError(absl::StrCat("tensor ", Quoted(name), " does not exist"));
  }
  const uint64_t bytes = it->second.bytes();
  if (begin > bytes || size > bytes - begin) {
    return absl::OutOfRangeError(
        absl::StrCat("tensor ", Quoted(name), " has only ", bytes, " bytes"));
  }
  std::vector<std::byte> data(size);
  RETURN_IF_ERROR(file_.ReadAt(header_.data_begin + it->second.begin + begin, data));
  return data;
}

std::optional<int64_t> FirstNonFinite(std::span<const std::byte> data, DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return FirstAllOnes<uint64_t>(data, 0x7FF0'0000'0000'0000);
    case DType::kFloat32:
      return FirstAllOnes<uint32_t>(data, 0x7F80'0000);
    case DType::kFloat16:
      return FirstAllOnes<uint16_t>(data, 0x7C00);
    case DType::kBFloat16:
      return FirstAllOnes<uint16_t>(data, 0x7F80);
    default:
      return std::nullopt;
  }
}

}  // namespace eta
