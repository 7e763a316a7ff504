// A GGUF file cut into parts, as llama.cpp's gguf-split cuts it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/gguf_writer.h"

namespace eta::testing {

inline void SetSplit(GgufWriter& part, uint16_t number, uint16_t count, int32_t tensors) {
  part.SetRaw("split.no", 2, RawBytes(number));
  part.SetRaw("split.count", 2, RawBytes(count));
  part.SetRaw("split.tensors.count", 5, RawBytes(tensors));
}

// "NAME-00001-of-00003.gguf" is number 0 of 3.
inline std::string PartName(const std::string& name, size_t number, size_t count) {
  char ending[64];
  std::snprintf(ending, sizeof(ending), "-%05zu-of-%05zu.gguf", number + 1, count);
  return name + ending;
}

// The tensors in turn, from part `first_with_tensors` on.
inline std::vector<GgufWriter> SplitGguf(const GgufWriter& whole, size_t count,
                                         size_t first_with_tensors = 0) {
  std::vector<GgufWriter> parts(count);
  parts.front() = whole;
  parts.front().tensors.clear();
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    const size_t number = first_with_tensors + i % (count - first_with_tensors);
    parts[number].tensors.push_back(whole.tensors[i]);
  }
  for (size_t number = 0; number < count; ++number) {
    parts[number].version = whole.version;
    SetSplit(parts[number], static_cast<uint16_t>(number), static_cast<uint16_t>(count),
             static_cast<int32_t>(whole.tensors.size()));
  }
  return parts;
}

// The path of the first.
inline std::string WriteParts(const TempFolder& folder, const std::string& name,
                              const std::vector<GgufWriter>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    folder.Write(PartName(name, i, parts.size()), parts[i].Serialize());
  }
  return folder.path() + "/" + PartName(name, 0, parts.size());
}

}  // namespace eta::testing
