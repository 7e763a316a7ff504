// A call as one JSON object, byte by byte: {"name": N, "arguments": {...}}. Models also say
// "parameters", and may name a "type" and an "id", which tell nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/chat/tools/json_cursor.h"

namespace eta {

// Arguments of a call, as they may be sent back: one JSON object within the limits of a request's
// (chat_template.h), without a key twice.
bool AreArguments(const std::string& json);

class CallObject {
 public:
  enum class State : uint8_t { kMore, kDone, kBroken };

  // `tools`: names that it may have; they outlive it.
  explicit CallObject(std::span<const std::string> tools);

  // Takes the next byte. Nothing more may follow once it is done or broken.
  State Feed(char c);

  // The tool; empty: it is not known yet.
  const std::string& name() const { return name_; }
  // As far as they have come, as they stand; empty: they have not begun.
  const std::string& arguments() const { return arguments_; }

 private:
  enum class Field : uint8_t { kName, kArguments, kOther };

  bool BeginField();
  bool EndField();

  std::span<const std::string> tools_;
  JsonCursor json_;
  bool in_key_ = false;
  bool in_value_ = false;
  Field field_ = Field::kOther;
  std::string key_;
  std::string value_;      // of a name
  std::string seen_keys_;  // with a blank behind each
  std::string name_;
  std::string arguments_;
};

}  // namespace eta
