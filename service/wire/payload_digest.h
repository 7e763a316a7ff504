// The digest of a request. The same request id with the same digest is the same request again.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace eta {

// SHA-256 over the method's name and the message's deterministic serialisation, without its request
// id and without fields that this build does not know; 64 hexadecimal digits.
absl::StatusOr<std::string> PayloadDigest(const std::string& method,
                                          const google::protobuf::Message& message);

}  // namespace eta
