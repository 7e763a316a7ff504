#include "calibration/evaluation/cases/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/cases/case_tensors.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

bool IsInteger(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt32 || dtype == DType::kInt64 ||
         dtype == DType::kUInt8;
}

double RealAt(DType dtype, const std::vector<std::byte>& bytes, size_t i) {
  if (dtype != DType::kFloat64) return LoadElement(dtype, bytes.data(), static_cast<int64_t>(i));
  double value;
  std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
  return value;
}

// Counts the elements of equal type whose bits differ.
size_t CountDifferent(DType dtype, const std::vector<std::byte>& a,
                      const std::vector<std::byte>& b) {
  size_t different = 0;
  for (size_t i = 0; i < a.size(); i += SizeOf(dtype)) {
    different += std::memcmp(a.data() + i, b.data() + i, SizeOf(dtype)) != 0 ? 1 : 0;
  }
  return different;
}

double LargestDifference(DType a_dtype, const std::vector<std::byte>& a, DType b_dtype,
                         const std::vector<std::byte>& b) {
  double largest = 0.0;
  for (size_t i = 0; i < a.size() / SizeOf(a_dtype); ++i) {
    const double difference = std::abs(RealAt(a_dtype, a, i) - RealAt(b_dtype, b, i));
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace

absl::StatusOr<Comparison> CompareFiles(const std::string& expected, const std::string& actual,
                                        double tolerance) {
  ASSIGN_OR_RETURN(const SafetensorsFile want, OpenCase(expected));
  ASSIGN_OR_RETURN(const SafetensorsFile got, OpenCase(actual));
  Comparison comparison;
  for (const auto& [name, info] : got.tensors()) {
    const auto found = want.tensors().find(name);
    if (found == want.tensors().end()) continue;
    const TensorInfo& wanted = found->second;
    const bool integers = IsInteger(info.dtype);
    bool equal = wanted.shape == info.shape &&
                 (integers ? wanted.dtype == info.dtype : !IsInteger(wanted.dtype));
    std::string line = equal ? "" : "another shape or type";
    if (equal) {
      ASSIGN_OR_RETURN(const auto a, want.Read(name));
      ASSIGN_OR_RETURN(const auto b, got.Read(name));
      if (integers) {
        const size_t different = CountDifferent(info.dtype, a, b);
        equal = different == 0;
        line = absl::StrCat(different, " elements differ");
      } else {
        const double largest = LargestDifference(wanted.dtype, a, info.dtype, b);
        equal = largest <= tolerance;
        line = absl::StrFormat("largest difference %.3g", largest);
      }
    }
    comparison.equal = comparison.equal && equal;
    absl::StrAppend(&comparison.report, equal ? "ok       " : "MISMATCH ", name, ": ", line, "\n");
  }
  if (comparison.report.empty()) {
    return absl::FailedPreconditionError("case: holds no expectation to compare the result with");
  }
  return comparison;
}

}  // namespace eta
