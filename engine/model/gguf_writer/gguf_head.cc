#include "engine/model/gguf_writer/gguf_head.h"

#include <bit>
#include <type_traits>

#include "engine/checkpoint/gguf/gguf_header.h"

namespace eta {
namespace {

constexpr uint32_t kVersion = 3;

template <typename T>
void Put(T value, std::string& out) {
  static_assert(std::is_arithmetic_v<T> && std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void PutText(std::string_view text, std::string& out) {
  Put(uint64_t{text.size()}, out);
  out.append(text);
}
constexpr uint32_t Number(GgufType type) {
  return static_cast<uint32_t>(type);
}

}  // namespace

uint64_t GgufHead::Padding(uint64_t bytes) {
  return (kGgufAlignment - bytes % kGgufAlignment) % kGgufAlignment;
}

void GgufHead::Begin(std::string_view key, uint32_t type) {
  ++num_entries_;
  PutText(key, entries_);
  Put(type, entries_);
}

void GgufHead::Set(std::string_view key, uint32_t value) {
  Begin(key, Number(GgufType::kUint32));
  Put(value, entries_);
}

void GgufHead::Set(std::string_view key, float value) {
  Begin(key, Number(GgufType::kFloat32));
  Put(value, entries_);
}

void GgufHead::Set(std::string_view key, bool value) {
  Begin(key, Number(GgufType::kBool));
  Put(uint8_t{value}, entries_);
}

void GgufHead::Set(std::string_view key, std::string_view value) {
  Begin(key, Number(GgufType::kString));
  PutText(value, entries_);
}

void GgufHead::Set(std::string_view key, const std::vector<std::string>& values) {
  Begin(key, Number(GgufType::kList));
  Put(Number(GgufType::kString), entries_);
  Put(uint64_t{values.size()}, entries_);
  for (const std::string& value : values) PutText(value, entries_);
}

template <typename T>
void GgufHead::SetList(std::string_view key, uint32_t type, const std::vector<T>& values) {
  Begin(key, Number(GgufType::kList));
  Put(type, entries_);
  Put(uint64_t{values.size()}, entries_);
  for (const T value : values) Put(value, entries_);
}

void GgufHead::Set(std::string_view key, const std::vector<int32_t>& values) {
  SetList(key, Number(GgufType::kInt32), values);
}

void GgufHead::Set(std::string_view key, const std::vector<float>& values) {
  SetList(key, Number(GgufType::kFloat32), values);
}

void GgufHead::Set(std::string_view key, const std::vector<bool>& values) {
  SetList(key, Number(GgufType::kBool), std::vector<uint8_t>(values.begin(), values.end()));
}

void GgufHead::AddTensor(std::string_view name, const std::vector<int64_t>& shape,
                         const GgmlLayout& layout) {
  ++num_tensors_;
  PutText(name, tensors_);
  Put(static_cast<uint32_t>(shape.size()), tensors_);
  uint64_t elements = 1;
  for (auto size = shape.rbegin(); size != shape.rend(); ++size) {
    Put(static_cast<uint64_t>(*size), tensors_);
    elements *= static_cast<uint64_t>(*size);
  }
  Put(static_cast<uint32_t>(layout.type), tensors_);
  Put(data_bytes_, tensors_);
  data_bytes_ += elements / layout.block_elements * layout.block_bytes;
  data_bytes_ += Padding(data_bytes_);
}

std::string GgufHead::Bytes() const {
  std::string head(kGgufMagic);
  Put(kVersion, head);
  Put(num_tensors_, head);
  Put(num_entries_, head);
  head += entries_;
  head += tensors_;
  head.append(Padding(head.size()), '\0');
  return head;
}

}  // namespace eta
