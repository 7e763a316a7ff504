#include "calibration/evaluation/cases/case_tensors.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[",
                      absl::StrJoin(shape, ", ",
                                    [](std::string* out, int64_t size) {
                                      if (size == kAnySize) {
                                        out->append("any");
                                      } else {
                                        absl::StrAppend(out, size);
                                      }
                                    }),
                      "]");
}

bool Fits(const std::vector<int64_t>& shape, const std::vector<int64_t>& wanted) {
  if (shape.size() != wanted.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (wanted[i] != kAnySize && shape[i] != wanted[i]) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<SafetensorsFile> OpenCase(const std::string& path) {
  return SafetensorsFile::Open(path, {.allow_writable_by_others = true});
}

absl::StatusOr<TensorInfo> FindTensor(const SafetensorsFile& file, const std::string& name,
                                      DType dtype, const std::vector<int64_t>& shape) {
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end() || found->second.dtype != dtype ||
      !Fits(found->second.shape, shape)) {
    return InvalidField(name, absl::StrCat("must be a tensor ", ShapeText(shape), " of ",
                                           std::string(Name(dtype))));
  }
  return found->second;
}

absl::StatusOr<std::vector<float>> ReadFloats(const SafetensorsFile& file, const std::string& name,
                                              DType dtype, const std::vector<int64_t>& shape) {
  RETURN_IF_ERROR(FindTensor(file, name, dtype, shape).status());
  ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file.Read(name));
  if (const auto index = FirstNonFinite(bytes, dtype)) {
    return InvalidField(name, absl::StrCat("element ", *index, " is NaN or infinite"));
  }
  std::vector<float> values(bytes.size() / SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = LoadElement(dtype, bytes.data(), static_cast<int64_t>(i));
  }
  return values;
}

absl::StatusOr<std::vector<int32_t>> ReadInt32s(const SafetensorsFile& file,
                                                const std::string& name,
                                                const std::vector<int64_t>& shape) {
  RETURN_IF_ERROR(FindTensor(file, name, DType::kInt32, shape).status());
  ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file.Read(name));
  std::vector<int32_t> values(bytes.size() / sizeof(int32_t));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

absl::StatusOr<std::vector<uint8_t>> ReadBytes(const SafetensorsFile& file, const std::string& name,
                                               const std::vector<int64_t>& shape) {
  RETURN_IF_ERROR(FindTensor(file, name, DType::kUInt8, shape).status());
  ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file.Read(name));
  std::vector<uint8_t> values(bytes.size());
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace eta
