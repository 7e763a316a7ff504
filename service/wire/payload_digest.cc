#include "service/wire/payload_digest.h"

#include "engine/base/sha256.h"
#include "google/protobuf/arena.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace eta {

absl::StatusOr<std::string> PayloadDigest(const std::string& method,
                                          const google::protobuf::Message& message) {
  // The copy is in an arena: outside of one it leaks if an allocation fails midway.
  google::protobuf::Arena arena;
  google::protobuf::Message* const known = message.New(&arena);
  known->CopyFrom(message);
  known->DiscardUnknownFields();
  if (const auto* const id = known->GetDescriptor()->FindFieldByName("request_id")) {
    known->GetReflection()->ClearField(known, id);
  }
  std::string bytes = method + '\n';
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);  // else the order of a map's entries is arbitrary
    if (!known->SerializeToCodedStream(&coded)) {
      return absl::InternalError("a request could not be serialised");
    }
  }
  return Sha256Hex(bytes);
}

}  // namespace eta
