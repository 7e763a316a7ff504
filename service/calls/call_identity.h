// What a call shows of its sender, from gRPC.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "service/identity/identity.h"

namespace eta {

// Its texts live as long as `context` does.
Shown ShownBy(const grpc::ServerContextBase& context, const std::string& tenant_header);

}  // namespace eta
