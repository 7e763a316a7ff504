// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/safetensors_header.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checked.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr size_t kMaxDepth = 4;
constexpr uint64_t kMaxNumber = uint64_t{1} << 48;

struct NamedDType {
  std::string_view name;
  DType dtype;
};
constexpr NamedDType kDTypes[] = {
    {"F64", DType::kFloat64},   {"F32", DType::kFloat32}, {"F16", DType::kFloat16},
    {"BF16", DType::kBFloat16}, {"I64", DType::kInt64},   {"I32", DType::kInt32},
    {"I8", DType::kInt8},       {"U8", DType::kUInt8},    {"F8_E4M3", DType::kFloat8E4M3},
};

absl::Status Invalid(const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat("safetensors header: ", sentence));
}

struct TensorEntry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Accepts exactly the grammar in the header file, one event at a time.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;
  absl::Status status;

  bool null() override { return Fail("null is not allowed"); }
  bool boolean(bool) override { return Fail("true and false are not allowed"); }
  bool number_integer(number_integer_t) override { return Fail("a number has a sign"); }
  bool number_float(number_float_t, const string_t&) override {
    return Fail("a number has a fraction or an exponent, or is over 2^48");
  }
  bool binary(binary_t&) override { return Fail("is not JSON"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (numbers_ == nullptr) return Fail("a number stands where none is allowed");
    if (value > kMaxNumber) return Fail("a number is over 2^48");
    if (numbers_->size() == kSafetensorsMaxRank) return Fail("a shape has over 8 dimensions");
    numbers_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      metadata[key_] = value;
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype" || numbers_ != nullptr) {
      return Fail("a string stands where none is allowed");
    }
    tensors.back().dtype = value;
    return true;
  }

  bool start_object(size_t) override {
    if (!Descend()) return false;
    if (depth_ == 1) return true;
    if (place_ != Place::kRoot) return Fail("an object stands where none is allowed");
    if (key_ == "__metadata__") {
      place_ = Place::kMetadata;
      return true;
    }
    if (tensors.size() == kSafetensorsMaxTensors) return Fail("has over 100000 tensors");
    place_ = Place::kTensor;
    tensors.push_back({.name = key_, .dtype = {}, .shape = {}, .offsets = {}});
    return true;
  }

  bool key(string_t& key) override {
    std::set<std::string>& seen = place_ == Place::kRoot ? root_keys_ : object_keys_;
    if (!seen.insert(key).second) {
      return Fail(absl::StrCat("the name ", Quoted(key), " occurs twice"));
    }
    if (place_ == Place::kTensor && key != "dtype" && key != "shape" && key != "data_offsets") {
      return Fail(absl::StrCat("a tensor has the unknown field ", Quoted(key)));
    }
    key_ = key;
    return true;
  }

  bool end_object() override {
    --depth_;
    place_ = Place::kRoot;
    object_keys_.clear();
    return true;
  }

  bool start_array(size_t) override {
    if (!Descend()) return false;
    if (place_ != Place::kTensor || numbers_ != nullptr || key_ == "dtype") {
      return Fail("an array stands where none is allowed");
    }
    TensorEntry& tensor = tensors.back();
    numbers_ = key_ == "shape" ? &tensor.shape.emplace() : &tensor.offsets.emplace();
    return true;
  }

  bool end_array() override {
    --depth_;
    numbers_ = nullptr;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("is not JSON at byte ", position));
  }

 private:
  enum class Place { kRoot, kMetadata, kTensor };

  bool Fail(const std::string& sentence) {
    status = Invalid(sentence);
    return false;
  }
  bool Descend() { return ++depth_ <= kMaxDepth || Fail("is nested over 4 deep"); }

  size_t depth_ = 0;
  Place place_ = Place::kRoot;
  std::string key_;
  std::set<std::string> root_keys_;
  std::set<std::string> object_keys_;         // of the open metadata or tensor object
  std::vector<uint64_t>* numbers_ = nullptr;  // the open array
};

absl::StatusOr<TensorInfo> ToTensorInfo(const TensorEntry& entry) {
  const auto invalid = [&entry](const std::string& sentence) {
    return Invalid(absl::StrCat("tensor ", Quoted(entry.name), " ", sentence));
  };
  if (!entry.dtype || !entry.shape || !entry.offsets || entry.offsets->size() != 2) {
    return invalid("needs dtype, shape and two data_offsets");
  }
  TensorInfo info;
  info.shape.assign(entry.shape->begin(), entry.shape->end());
  info.begin = (*entry.offsets)[0];
  info.end = (*entry.offsets)[1];
  const auto dtype = ParseSafetensorsDType(*entry.dtype);
  if (!dtype) {
    return absl::UnimplementedError(absl::StrCat("safetensors header: tensor ", Quoted(entry.name),
                                                 " has the unsupported dtype ",
                                                 Quoted(*entry.dtype)));
  }
  info.dtype = *dtype;
  const auto bytes = CheckedBytes(info.shape, SizeOf(*dtype));
  if (!bytes) return invalid("has a shape whose size overflows 64 bits");
  if (info.end < info.begin) return invalid("ends before it starts");
  if (*bytes != info.bytes()) return invalid("has data_offsets that do not fit shape and dtype");
  return info;
}

// The tensors cover [0, data_bytes) exactly.
absl::Status CheckCoverage(const std::map<std::string, TensorInfo>& tensors, uint64_t data_bytes) {
  std::vector<std::pair<const TensorInfo*, const std::string*>> order;
  order.reserve(tensors.size());
  for (const auto& [name, info] : tensors) order.emplace_back(&info, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  uint64_t covered = 0;
  for (const auto& [info, name] : order) {
    if (info->begin != covered) {
      return Invalid(absl::StrCat("tensor ", Quoted(*name),
                                  info->begin < covered ? " overlaps another" : " follows a hole"));
    }
    covered = info->end;
  }
  if (covered > data_bytes) {
    return absl::DataLossError("safetensors file ends before its last tensor");
  }
  if (covered < data_bytes) return Invalid("bytes follow the last tensor");
  return absl::OkStatus();
}

// Whether a JSON object that starts `text` also ends in it.
bool ObjectEnds(std::string_view text) {
  size_t depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '"')
        quoted = false;
    } else if (text[i] == '"') {
      quoted = true;
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::optional<DType> ParseSafetensorsDType(std::string_view name) {
  for (const NamedDType& named : kDTypes) {
    if (named.name == name) return named.dtype;
  }
  return std::nullopt;
}

std::string_view SafetensorsName(DType dtype) {
  const auto* named = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                   [dtype](const NamedDType& n) { return n.dtype == dtype; });
  return named->name;
}

absl::StatusOr<uint64_t> SafetensorsHeaderLength(std::string_view bytes, uint64_t file_size) {
  if (file_size < kLengthBytes || bytes.size() < kLengthBytes) {
    return absl::DataLossError("safetensors file is under 8 bytes");
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    // cannot wrap: i counts the bytes of a number
    length |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  }
  if (length > kSafetensorsMaxHeaderBytes) return Invalid("its length is over 8 MiB");
  return length;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view bytes,
                                                         uint64_t file_size) {
  ASSIGN_OR_RETURN(const auto length, SafetensorsHeaderLength(bytes, file_size));
  std::string_view text = bytes.substr(kLengthBytes, length);
  if (!text.empty() && text.front() != '{') return Invalid("does not start with a brace");
  if (text.size() < length || length > file_size - kLengthBytes) {
    // A complete object means that the length lies; an open one, that the file was cut off.
    if (ObjectEnds(text)) return Invalid("its length runs past the end of the file");
    return absl::DataLossError("safetensors file ends inside its header");
  }
  if (text.empty()) return Invalid("is empty");
  if (const auto offset = FirstInvalidUtf8(text)) {
    return Invalid(absl::StrCat("is not UTF-8 at byte ", *offset));
  }
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  // The parser takes a NUL for the end of its input and would not see what follows.
  if (text.back() != '}' || text.find('\0') != std::string_view::npos) {
    return Invalid("is followed by something other than spaces");
  }
  HeaderReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) return reader.status;

  SafetensorsHeader header;
  header.metadata = std::move(reader.metadata);
  header.data_begin = kLengthBytes + length;
  for (const TensorEntry& entry : reader.tensors) {
    ASSIGN_OR_RETURN(auto info, ToTensorInfo(entry));
    header.tensors.emplace(entry.name, std::move(info));
  }
  RETURN_IF_ERROR(CheckCoverage(header.tensors, file_size - header.data_begin));
  return header;
}

}  // namespace eta
