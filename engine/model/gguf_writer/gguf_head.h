// The head of a GGUF file to write, version 3: metadata and where each tensor lies
// (engine/checkpoint/gguf/gguf_header.h has the format).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/weights/ggml_type.h"

namespace eta {

// Not thread-safe. Keys and names are the caller's to keep apart.
class GgufHead {
 public:
  void Set(std::string_view key, uint32_t value);
  void Set(std::string_view key, float value);
  void Set(std::string_view key, bool value);
  void Set(std::string_view key, std::string_view value);
  void Set(std::string_view key, const char* value) { Set(key, std::string_view(value)); }
  void Set(std::string_view key, const std::vector<std::string>& values);
  void Set(std::string_view key, const std::vector<int32_t>& values);
  void Set(std::string_view key, const std::vector<float>& values);
  void Set(std::string_view key, const std::vector<bool>& values);

  // Behind those before it. `shape`: outermost first. REQUIRES: rows are whole blocks.
  void AddTensor(std::string_view name, const std::vector<int64_t>& shape,
                 const GgmlLayout& layout);

  // With the padding up to the data.
  std::string Bytes() const;
  // Of the tensors, each with the padding behind it.
  uint64_t data_bytes() const { return data_bytes_; }

  // How many bytes of padding follow this many.
  static uint64_t Padding(uint64_t bytes);

 private:
  void Begin(std::string_view key, uint32_t type);
  template <typename T>
  void SetList(std::string_view key, uint32_t type, const std::vector<T>& values);

  std::string entries_;
  uint64_t num_entries_ = 0;
  std::string tensors_;
  uint64_t num_tensors_ = 0;
  uint64_t data_bytes_ = 0;
};

}  // namespace eta
