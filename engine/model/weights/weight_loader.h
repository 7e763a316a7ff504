// Weights of a checkpoint on their way to a backend, one matrix at a time, each as it is stored, so
// that the peak is the weights plus one matrix of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/checkpoint/tensor_source.h"
#include "kernels/backend.h"

namespace eta {

absl::Status UploadFloats(Backend& backend, std::span<const float> values,
                          std::unique_ptr<Buffer>& buffer);

// The first error stays, and after it nothing is loaded: see status() at the end. It names the
// tensor and the element that is NaN, infinite or beyond what the format holds, unless those are
// allowed. REQUIRES: ValidateTensors(). Not thread-safe.
class WeightLoader {
 public:
  WeightLoader(const TensorSource& source, Backend& backend, bool allow_nonfinite,
               WeightFormat format)
      : source_(source), backend_(backend), allow_nonfinite_(allow_nonfinite), format_(format) {}

  // The named tensors, stacked.
  void Matrix(const std::vector<std::string>& names, std::unique_ptr<eta::Matrix>& matrix) {
    Load(names, format_, /*exact=*/false, matrix);
  }
  // One that stays as it is stored, whatever the format.
  void StoredMatrix(const std::string& name, std::unique_ptr<eta::Matrix>& matrix) {
    Load({name}, WeightFormat::kNative, /*exact=*/true, matrix);
  }
  // The matrices of a layer's experts become one stack.
  void Stack(std::vector<std::unique_ptr<eta::Matrix>> matrices,
             std::unique_ptr<ExpertStack>& stack);
  // Small tensors that stay float32, one after the other, each number plus `added`.
  void Floats(const std::vector<std::string>& names, std::unique_ptr<Buffer>& buffer,
              float added = 0.0f);
  // Whether the two tensors are the same to the last bit.
  bool Equal(const std::string& a, const std::string& b);

  const absl::Status& status() const { return status_; }

 private:
  void Load(const std::vector<std::string>& names, WeightFormat format, bool exact,
            std::unique_ptr<eta::Matrix>& matrix);
  const TensorInfo& Info(const std::string& name) const { return source_.tensors().at(name); }
  std::vector<std::byte> Read(const std::string& name);
  StoredTensor ReadStored(const std::string& name, WeightFormat format);
  void CheckFloat8(const std::string& name, const StoredTensor& tensor, WeightFormat format);
  void CheckFinite(const std::string& name, std::optional<int64_t> nonfinite);
  void CheckRange(const std::string& name, std::span<const std::byte> numbers, WeightFormat format);
  void Refuse(const std::string& name, const std::string& sentence);

  const TensorSource& source_;
  Backend& backend_;
  bool allow_nonfinite_;
  WeightFormat format_;
  absl::Status status_;
};

}  // namespace eta
