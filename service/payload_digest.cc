#include "service/payload_digest.h"

#include <memory>

#include "engine/sha256.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace eta {

absl::StatusOr<std::string> PayloadDigest(const std::string& method,
                                          const google::protobuf::Message& message) {
  const std::unique_ptr<google::protobuf::Message> known(message.New());
  known->CopyFrom(message);
  known->DiscardUnknownFields();
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
