#include "service/etactl/json.h"

#include <google/protobuf/util/json_util.h>

namespace eta::ctl {

std::string JsonLine(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string line;
  if (!google::protobuf::util::MessageToJsonString(message, &line, options).ok()) return "";
  return line + '\n';
}

}  // namespace eta::ctl
