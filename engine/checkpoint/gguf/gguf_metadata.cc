// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_metadata.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/files/input_file.h"
#include "engine/base/utf8.h"
#include "engine/checkpoint/gguf/gguf_reader.h"

namespace eta {
namespace {

// A whole number of any width; nullopt for other types and past int64.
std::optional<int64_t> ReadInteger(GgufType type, GgufReader& reader) {
  switch (type) {
    case GgufType::kUint8:
      return reader.Number<uint8_t>();
    case GgufType::kInt8:
      return reader.Number<int8_t>();
    case GgufType::kUint16:
      return reader.Number<uint16_t>();
    case GgufType::kInt16:
      return reader.Number<int16_t>();
    case GgufType::kUint32:
      return reader.Number<uint32_t>();
    case GgufType::kInt32:
      return reader.Number<int32_t>();
    case GgufType::kInt64:
      return reader.Number<int64_t>();
    case GgufType::kUint64: {
      const auto number = reader.Number<uint64_t>();
      if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(number);
    }
    default:
      return std::nullopt;
  }
}

double ShortestDecimal(float value) {
  std::array<char, 64> text;
  const auto written = std::to_chars(text.data(), text.data() + text.size(), value);
  double decimal = value;
  std::from_chars(text.data(), written.ptr, decimal);
  return decimal;
}

}  // namespace

std::vector<std::string> GgufMetadata::KeysUnder(std::string_view prefix) const {
  std::vector<std::string> keys;
  for (auto it = values_.lower_bound(prefix); it != values_.end(); ++it) {
    if (!std::string_view(it->first).starts_with(prefix)) break;
    keys.push_back(it->first);
  }
  return keys;
}

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

bool GgufMetadata::IsList(std::string_view key) const {
  const GgufValue* value = Find(key);
  return value != nullptr && value->type == GgufType::kList;
}

int64_t GgufMetadata::Integer(std::string_view key, int64_t low, int64_t high) {
  const auto number = OptionalInteger(key, low, high);
  if (!number && !Has(key)) Fail(key, "is missing");
  return number.value_or(low);
}

std::optional<int64_t> GgufMetadata::OptionalInteger(std::string_view key, int64_t low,
                                                     int64_t high) {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  GgufReader reader(value->bytes);
  const auto number = ReadInteger(value->type, reader);
  if (number && *number >= low && *number <= high) return number;
  Fail(key, absl::StrCat("must be one whole number in [", low, ", ", high, "]"));
  return std::nullopt;
}

double GgufMetadata::Real(std::string_view key) {
  const auto number = OptionalReal(key);
  if (!number && !Has(key)) Fail(key, "is missing");
  return number.value_or(0.0);
}

std::optional<double> GgufMetadata::OptionalReal(std::string_view key) {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  GgufReader reader(value->bytes);
  double number = NAN;
  if (value->type == GgufType::kFloat32) number = ShortestDecimal(reader.Number<float>());
  if (value->type == GgufType::kFloat64) number = reader.Number<double>();
  if (std::isfinite(number)) return number;
  Fail(key, "must be a finite number, as float32 or float64");
  return std::nullopt;
}

std::optional<bool> GgufMetadata::OptionalBool(std::string_view key) {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type == GgufType::kBool) return value->bytes.front() != 0;
  Fail(key, "must be true or false");
  return std::nullopt;
}

std::string GgufMetadata::Text(std::string_view key) {
  auto text = OptionalText(key);
  if (!text && !Has(key)) Fail(key, "is missing");
  return std::move(text).value_or("");
}

std::optional<std::string> GgufMetadata::OptionalText(std::string_view key) {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type == GgufType::kString && !FirstInvalidUtf8(value->bytes)) {
    return std::string(value->bytes);
  }
  Fail(key, "must be a text in UTF-8");
  return std::nullopt;
}

const GgufValue* GgufMetadata::FindList(std::string_view key, std::string_view of) {
  const GgufValue* value = Find(key);
  if (value == nullptr || value->type == GgufType::kList) return value;
  Fail(key, absl::StrCat("must be a list of ", std::string(of)));
  return nullptr;
}

std::vector<std::string_view> GgufMetadata::Texts(std::string_view key) {
  std::vector<std::string_view> texts;
  const GgufValue* list = FindList(key, "texts");
  if (list == nullptr) return texts;
  if (list->element_type != GgufType::kString) {
    Fail(key, "must be a list of texts");
    return texts;
  }
  texts.reserve(list->elements);
  GgufReader reader(list->bytes);
  for (uint64_t i = 0; i < list->elements; ++i) {
    texts.push_back(reader.String());
    if (FirstInvalidUtf8(texts.back())) {
      Fail(key, absl::StrCat("entry ", i, " is not UTF-8"));
      return {};
    }
  }
  return texts;
}

std::vector<int64_t> GgufMetadata::Integers(std::string_view key) {
  std::vector<int64_t> numbers;
  const GgufValue* list = FindList(key, "whole numbers");
  if (list == nullptr) return numbers;
  GgufReader reader(list->bytes);
  for (uint64_t i = 0; i < list->elements; ++i) {
    const auto number = ReadInteger(list->element_type, reader);
    if (!number) {
      Fail(key, "must be a list of whole numbers");
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<float> GgufMetadata::Reals(std::string_view key) {
  std::vector<float> numbers;
  const GgufValue* list = FindList(key, "float32 numbers");
  if (list == nullptr) return numbers;
  if (list->element_type != GgufType::kFloat32) {
    Fail(key, "must be a list of float32 numbers");
    return numbers;
  }
  GgufReader reader(list->bytes);
  for (uint64_t i = 0; i < list->elements; ++i) numbers.push_back(reader.Number<float>());
  return numbers;
}

std::vector<bool> GgufMetadata::Bools(std::string_view key) {
  std::vector<bool> bools;
  const GgufValue* list = FindList(key, "true and false");
  if (list == nullptr) return bools;
  if (list->element_type != GgufType::kBool) {
    Fail(key, "must be a list of true and false");
    return bools;
  }
  for (const char element : list->bytes) bools.push_back(element != 0);
  return bools;
}

void GgufMetadata::Fail(std::string_view key, const std::string& sentence) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(
      absl::StrCat("GGUF file: ", Quoted(std::string(key)), " ", sentence));
}

void GgufMetadata::FailUnsupported(std::string_view key, const std::string& sentence) {
  if (!status_.ok()) return;
  status_ = absl::UnimplementedError(
      absl::StrCat("GGUF file: ", Quoted(std::string(key)), " ", sentence));
}

}  // namespace eta
