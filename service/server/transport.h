// How the server's options become those of gRPC and of the listener.
#pragma once

#include "engine/request/limits.h"
#include "grpcpp/server_builder.h"
#include "service/connections/acceptor.h"
#include "service/options/server_options.h"

namespace eta {

// Sizes of messages, pings, ages and streams of a connection. `has_store`: profiles are imported.
void ConfigureTransport(const ServerOptions& options, const Limits& limits, bool has_store,
                        grpc::ServerBuilder& builder);

Acceptor::Options AcceptorOptions(const ServerOptions& options);

}  // namespace eta
