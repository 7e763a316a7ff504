// Messages of the API as etactl --json writes them.
#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace eta::ctl {

// One line with its line end: the proto's field names, defaults spelled out.
std::string JsonLine(const google::protobuf::Message& message);

}  // namespace eta::ctl
