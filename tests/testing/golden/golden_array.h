// A tensor of a golden file as plain numbers.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"

namespace eta::testing {

// REQUIRES: the file has the tensor, and its elements are Ts.
template <typename T>
std::vector<T> GoldenArray(const SafetensorsFile& file, const std::string& name) {
  const std::vector<std::byte> bytes = *file.Read(name);
  std::vector<T> array(bytes.size() / sizeof(T));
  if (!array.empty()) std::memcpy(array.data(), bytes.data(), array.size() * sizeof(T));
  return array;
}

}  // namespace eta::testing
