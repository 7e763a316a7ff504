// lint: untrusted-input
#include "service/wire/longest_field.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/impl/codegen/proto_buffer_reader.h"

namespace eta {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

std::optional<LongestField> FindLongestField(const grpc::ByteBuffer& message,
                                             const Descriptor& type) {
  grpc::ByteBuffer buffer(message);
  grpc::ProtoBufferReader reader(&buffer);
  google::protobuf::io::CodedInputStream input(&reader);
  std::optional<LongestField> longest;
  const Descriptor* in = &type;
  std::map<const FieldDescriptor*, size_t> indices;  // of the repeated fields in here
  while (in != nullptr) {
    const uint32_t tag = input.ReadTag();
    if (tag == 0) break;
    const FieldDescriptor* field = in->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool is_long =
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WireType::WIRETYPE_LENGTH_DELIMITED;
    if (field == nullptr || !is_long) {
      if (!WireFormatLite::SkipField(&input, tag)) break;
      continue;
    }
    const size_t index = field->is_repeated() ? indices[field]++ : 0;
    uint32_t bytes = 0;
    if (!input.ReadVarint32(&bytes)) break;
    if (bytes <= message.Length() / 2) {
      if (!input.Skip(static_cast<int>(bytes))) break;
      continue;
    }
    // No other field in here is so long.
    std::string path = longest ? longest->path + "." : "";
    absl::StrAppend(&path, field->name());
    if (field->is_repeated() && !field->is_packable()) absl::StrAppend(&path, "[", index, "]");
    longest = {.path = std::move(path), .bytes = bytes};
    in = field->message_type();
    indices.clear();
  }
  return longest;
}

}  // namespace eta
