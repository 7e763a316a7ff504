// Connections that an Acceptor takes and a gRPC server serves.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace eta {

// Before the server is built. Once it has started, what is returned hands it an accepted
// connection, whose descriptor it closes.
inline std::function<void(int fd)> HandedConnections(
    grpc::ServerBuilder& builder, std::shared_ptr<grpc::ServerCredentials> credentials) {
  using Connections = grpc::experimental::ExternalConnectionAcceptor;
  const std::shared_ptr<Connections> connections =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          std::move(credentials));
  return [connections](int fd) {
    Connections::NewConnectionParameters connection;
    connection.fd = fd;
    connections->HandleNewConnection(&connection);
  };
}

}  // namespace eta
