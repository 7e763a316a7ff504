// Messages of the API in the form of etactl --json.
#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace eta::ctl {

// One line with its line end. Names are the proto's field names; defaults are written out.
std::string JsonLine(const google::protobuf::Message& message);

}  // namespace eta::ctl
