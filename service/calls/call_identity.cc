#include "service/calls/call_identity.h"

#include "grpc/grpc_security_constants.h"

namespace eta {
namespace {

std::vector<std::string_view> ValuesOf(const grpc::ServerContextBase& context,
                                       const std::string& key) {
  std::vector<std::string_view> values;
  const auto [first, last] = context.client_metadata().equal_range(key);
  for (auto i = first; i != last; ++i) values.emplace_back(i->second.data(), i->second.size());
  return values;
}

}  // namespace

Shown ShownBy(const grpc::ServerContextBase& context, const std::string& tenant_header) {
  Shown shown{.authorization = ValuesOf(context, kAuthorizationKey)};
  if (!tenant_header.empty()) shown.tenants = ValuesOf(context, tenant_header);
  const auto peer = context.auth_context();
  if (peer == nullptr) return shown;
  // gRPC has verified it: what does not lead to --tls_client_ca is no connection.
  shown.certified = !peer->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME).empty();
  const auto ids = peer->FindPropertyValues(GRPC_PEER_SPIFFE_ID_PROPERTY_NAME);
  if (shown.certified && ids.size() == 1) shown.spiffe_id = {ids[0].data(), ids[0].size()};
  return shown;
}

}  // namespace eta
