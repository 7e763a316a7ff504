// Strict reading of a GGUF file's metadata: a value has the wanted type and range, or is an error
// that names its key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/checkpoint/gguf/gguf_header.h"

namespace eta {

// The first error stays; reading goes on with zeros and empty values, so check status() at the end.
// Not thread-safe.
class GgufMetadata {
 public:
  // REQUIRES: the header and what it was parsed from outlive this.
  explicit GgufMetadata(const GgufHeader& header) : values_(header.metadata) {}

  bool Has(std::string_view key) const { return values_.contains(key); }
  // Keys that begin with `prefix`, sorted.
  std::vector<std::string> KeysUnder(std::string_view prefix) const;

  // INVALID_ARGUMENT where it is absent; nullopt in the second form.
  int64_t Integer(std::string_view key, int64_t low, int64_t high);
  std::optional<int64_t> OptionalInteger(std::string_view key, int64_t low, int64_t high);
  // Of a float32, the shortest decimal that reads back as it: 1e-05, not 9.9999997e-06.
  double Real(std::string_view key);
  std::optional<double> OptionalReal(std::string_view key);
  std::optional<bool> OptionalBool(std::string_view key);
  // Well-formed UTF-8.
  std::string Text(std::string_view key);
  std::optional<std::string> OptionalText(std::string_view key);

  // Lists; empty where absent. Texts are views into the header's bytes and well-formed UTF-8.
  std::vector<std::string_view> Texts(std::string_view key);
  std::vector<int64_t> Integers(std::string_view key);
  std::vector<float> Reals(std::string_view key);

  void Fail(std::string_view key, const std::string& sentence);             // INVALID_ARGUMENT
  void FailUnsupported(std::string_view key, const std::string& sentence);  // UNIMPLEMENTED
  const absl::Status& status() const { return status_; }

 private:
  const GgufValue* Find(std::string_view key) const;
  // Null, with an error, unless it is a list or absent; null if absent.
  const GgufValue* FindList(std::string_view key, std::string_view of);

  const std::map<std::string, GgufValue, std::less<>>& values_;
  absl::Status status_;
};

}  // namespace eta
