// Which field a message owes its length to.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "google/protobuf/descriptor.h"
#include "grpcpp/support/byte_buffer.h"

namespace eta {

struct LongestField {
  std::string path;  // as errors name fields: "chat.messages[2].text"
  size_t bytes = 0;
};

// The innermost field that has over half of the message's bytes; absent where none has. Reads the
// bytes as they come and keeps nothing of them, since they are too many to be parsed.
std::optional<LongestField> FindLongestField(const grpc::ByteBuffer& message,
                                             const google::protobuf::Descriptor& type);

}  // namespace eta
