// Channels with a connection of their own. By default gRPC shares one among channels to one
// address.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace eta::testing {

inline std::shared_ptr<grpc::Channel> OwnConnection(
    const std::string& address,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials =
        grpc::InsecureChannelCredentials(),
    grpc::ChannelArguments arguments = {}) {
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace eta::testing
