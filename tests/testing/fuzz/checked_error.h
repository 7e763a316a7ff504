// The requirements on every error that a client or an operator sees.
#pragma once

#include <algorithm>

#include "absl/status/status.h"
#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "tests/testing/fuzz/input_reader.h"

namespace eta::fuzz {

inline constexpr size_t kMaxErrorBytes = 2048;

// Requires a sentence in UTF-8 without control characters, of bounded length. If it names a field,
// the same holds for the field.
inline void RequireReadable(const absl::Status& status) {
  const auto readable = [](std::string_view text) {
    return text.size() <= kMaxErrorBytes && !FirstInvalidUtf8(text) &&
           std::all_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != '\x7F'; });
  };
  Require(!status.ok());
  Require(!status.message().empty());
  Require(readable(std::string_view(status.message().data(), status.message().size())));
  Require(readable(GetErrorDetail(status).field));
}

}  // namespace eta::fuzz
