// Protocol messages as text.
#pragma once

#include <google/protobuf/text_format.h>

#include <string>
#include <type_traits>

#include "gmock/gmock.h"

namespace eta {

template <typename Message>
Message FromText(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

// A message that has just the fields of the text.
MATCHER_P(ReadsAs, text, "") {
  const std::string wanted = FromText<std::remove_cvref_t<arg_type>>(text).DebugString();
  *result_listener << "and should be\n" << wanted;
  return arg.DebugString() == wanted;
}

}  // namespace eta
