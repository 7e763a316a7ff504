// Parses a method's request from its raw bytes. So this program, and not the library, answers a
// message that does not parse or is too long for the method.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "service/wire/longest_field.h"

namespace eta {

// INVALID_ARGUMENT (MALFORMED_MESSAGE); RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE) for over
// `max_bytes`, with the field that has most of them.
template <typename Message>
absl::StatusOr<Message> ParseMessage(const grpc::ByteBuffer& bytes, size_t max_bytes) {
  if (const size_t size = bytes.Length(); size > max_bytes) {
    const LongestField longest =
        FindLongestField(bytes, *Message::descriptor()).value_or(LongestField());
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("the message has ", size, " bytes, this method takes ", max_bytes,
                     longest.path.empty()
                         ? ""
                         : absl::StrCat(": ", longest.path, " has ", longest.bytes, " of them")),
        {.reason = "MESSAGE_TOO_LARGE",
         .field = longest.path,
         .metadata = {{"bytes", absl::StrCat(size)}, {"limit", absl::StrCat(max_bytes)}}});
  }
  Message message;
  grpc::ByteBuffer buffer(bytes);
  if (!grpc::SerializationTraits<Message>::Deserialize(&buffer, &message).ok()) {
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("the message is no ", Message::descriptor()->full_name(),
                                  ", or one of its string fields is not UTF-8"),
                     {.reason = "MALFORMED_MESSAGE"});
  }
  return message;
}

// Serialises a method's answer.
template <typename Message>
void SerializeMessage(const Message& message, grpc::ByteBuffer& bytes) {
  bytes.Clear();
  bool own_buffer;
  grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own_buffer);
}

}  // namespace eta
