// Any bytes as the file of --identity: refused in a readable sentence, or entries within their
// limits, somebody among them.
#include <cstdint>
#include <string_view>

#include "service/identity/api_key.h"
#include "service/identity/identity_file.h"
#include "tests/fuzz/checked_error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using eta::fuzz::Require;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto file = eta::ParseIdentityFile(text);
  if (!file.ok()) {
    eta::fuzz::RequireReadable(file.status());
    return 0;
  }
  Require(!file->api_keys.empty() || !file->issuers.empty() || !file->peers.empty());
  for (const auto& [id, key] : file->api_keys) {
    Require(eta::IsApiKeyId(id) && key.digest.size() == 32 && !key.roles.empty());
  }
  for (const auto& [name, issuer] : file->issuers) {
    Require(name == issuer.issuer && !name.empty() && !issuer.audiences.empty());
    Require(!issuer.keys.empty() && !issuer.roles.empty() && issuer.leeway.count() >= 0);
    Require(issuer.tenant.has_value() == issuer.tenant_claim.empty());
  }
  for (const auto& [id, peer] : file->peers) {
    Require(id.starts_with("spiffe://") && !peer.roles.empty());
  }
  return 0;
}
