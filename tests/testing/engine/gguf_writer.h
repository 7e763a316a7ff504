// Writes GGUF files for tests: small files, damaged files, and files in parts.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/checkpoint/gguf/gguf_header.h"
#include "tests/testing/base/temp_folder.h"

namespace eta {

template <typename T>
std::string RawBytes(T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
inline std::string GgufString(std::string_view text) {
  return RawBytes(uint64_t{text.size()}) + std::string(text);
}

class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;
  // Where these are set, the head says something else than what is there.
  std::optional<uint64_t> stated_tensors;
  std::optional<uint64_t> stated_entries;

  // An entry with these bytes as value, in place of one with that key.
  void SetRaw(const std::string& key, uint32_t type, const std::string& bytes) {
    Remove(key);
    entries_.push_back({key, GgufString(key) + RawBytes(type) + bytes});
  }
  void Set(const std::string& key, uint32_t value) { SetRaw(key, 4, RawBytes(value)); }
  void Set(const std::string& key, float value) { SetRaw(key, 6, RawBytes(value)); }
  void Set(const std::string& key, bool value) { SetRaw(key, 7, RawBytes(uint8_t{value})); }
  void Set(const std::string& key, std::string_view value) { SetRaw(key, 8, GgufString(value)); }
  void Set(const std::string& key, const char* value) { Set(key, std::string_view(value)); }
  void Set(const std::string& key, const std::string& value) { Set(key, std::string_view(value)); }
  void Set(const std::string& key, const std::vector<std::string>& values) {
    std::string bytes = RawBytes(uint32_t{8}) + RawBytes(uint64_t{values.size()});
    for (const std::string& value : values) bytes += GgufString(value);
    SetRaw(key, 9, bytes);
  }
  void Set(const std::string& key, const std::vector<int32_t>& values) { SetList(key, 5, values); }
  void Set(const std::string& key, const std::vector<float>& values) { SetList(key, 6, values); }
  void Set(const std::string& key, const std::vector<bool>& values) {
    SetList(key, 7, std::vector<uint8_t>(values.begin(), values.end()));
  }
  void Remove(const std::string& key) {
    std::erase_if(entries_, [&](const Entry& entry) { return entry.key == key; });
  }

  struct Tensor {
    std::string name;
    std::vector<uint64_t> dimensions;  // innermost first, as in the file
    uint32_t type = 0;
    std::string data;
    std::optional<uint64_t> offset;  // where it is set, another than the right one
  };
  std::vector<Tensor> tensors;
  Tensor& At(const std::string& name) {
    for (Tensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    return tensors.emplace_back(Tensor{.name = name});
  }
  void RemoveTensor(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
  }

  // The head alone: up to the padding before the data.
  std::string Head() const {
    std::string file = "GGUF" + RawBytes(version) +
                       RawBytes(stated_tensors.value_or(tensors.size())) +
                       RawBytes(stated_entries.value_or(entries_.size()));
    for (const Entry& entry : entries_) file += entry.bytes;
    uint64_t offset = 0;
    for (const Tensor& tensor : tensors) {
      file += GgufString(tensor.name) + RawBytes(static_cast<uint32_t>(tensor.dimensions.size()));
      for (const uint64_t dimension : tensor.dimensions) file += RawBytes(dimension);
      file += RawBytes(tensor.type) + RawBytes(tensor.offset.value_or(offset));
      offset = Padded(offset + tensor.data.size());
    }
    return file;
  }
  std::string Serialize() const {
    std::string file = Head();
    for (const Tensor& tensor : tensors) {
      file.resize(Padded(file.size()), '\0');
      file += tensor.data;
    }
    return file;
  }

 private:
  struct Entry {
    std::string key;
    std::string bytes;
  };

  template <typename T>
  void SetList(const std::string& key, uint32_t type, const std::vector<T>& values) {
    std::string bytes = RawBytes(type) + RawBytes(uint64_t{values.size()});
    for (const T value : values) bytes += RawBytes(value);
    SetRaw(key, 9, bytes);
  }
  uint64_t Padded(uint64_t size) const { return (size + alignment - 1) / alignment * alignment; }

  std::vector<Entry> entries_;
};

}  // namespace eta

// A file cut into parts, as llama.cpp's gguf-split cuts it.
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
