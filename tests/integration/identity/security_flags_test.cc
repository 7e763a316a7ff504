// Flags of access: a flag without effect is refused, and no flag opens more than it names.
#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "tests/testing/service/identity_fixture.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(IdentityTest, NoFlagOfSecurityIsIdle) {
  const auto error = [this](const std::function<void(ServerOptions&)>& change) {
    ServerOptions options = TlsOptions(true);
    options.identity = Options().identity;
    change(options);
    return std::string(Server::Check(options, Limits()).message());
  };
  EXPECT_EQ(error([](ServerOptions&) {}), "");
  EXPECT_THAT(error([](ServerOptions& o) {
                o.identity.clear();
                o.tenant_header = kTenantHeader;
              }),
              HasSubstr("--tenant_header: with --tls_client_ca it needs --identity"));
  EXPECT_THAT(error([](ServerOptions& o) { o.tls_cert.clear(); }), HasSubstr("--tls_cert"));
  EXPECT_THAT(error([](ServerOptions& o) { o.tls_key.clear(); }), HasSubstr("--tls_key"));
  EXPECT_THAT(error([](ServerOptions& o) {
                o.tls_cert.clear();
                o.tls_key.clear();
              }),
              HasSubstr("--tls_client_ca"));
  EXPECT_THAT(error([](ServerOptions& o) {
                o.listen = "0.0.0.0:0";
                o.allow_unauthenticated_network = true;
              }),
              HasSubstr("--allow_unauthenticated_network: calls are authenticated"));
  EXPECT_THAT(error([](ServerOptions& o) {
                o.listen = "0.0.0.0:0";
                o.allow_plaintext_network = true;
              }),
              HasSubstr("--allow_plaintext_network: calls are encrypted"));
  EXPECT_THAT(error([](ServerOptions& o) {
                o.listen = "0.0.0.0:0";
                o.tenant_header = kTenantHeader;
              }),
              HasSubstr("--tenant_header"));
  EXPECT_THAT(error([](ServerOptions& o) { o.tls_key = "/nowhere"; }), HasSubstr("--tls_key"));
  EXPECT_THAT(error([](ServerOptions& o) { o.identity = "/nowhere"; }), HasSubstr("--identity"));

  const auto bind = [](const std::function<void(ServerOptions&)>& change) {
    ServerOptions options;
    options.listen = "0.0.0.0:0";
    change(options);
    return std::string(CheckListenAddress(options).message());
  };
  const std::string neither = bind([](ServerOptions&) {});
  EXPECT_THAT(neither, HasSubstr("--allow_unauthenticated_network"));
  EXPECT_THAT(neither, HasSubstr("--allow_plaintext_network"));
  EXPECT_THAT(bind([](ServerOptions& o) { o.identity = "f"; }), Not(HasSubstr("authenticated")));
  EXPECT_THAT(bind([](ServerOptions& o) { o.identity = "f"; }), HasSubstr("--tls_cert"));
  EXPECT_THAT(bind([](ServerOptions& o) { o.tls_cert = "f"; }), HasSubstr("--identity"));
  EXPECT_THAT(bind([](ServerOptions& o) { o.allow_unauthenticated_network = true; }),
              HasSubstr("--allow_plaintext_network"));
  EXPECT_EQ(bind([](ServerOptions& o) {
              o.allow_unauthenticated_network = true;
              o.allow_plaintext_network = true;
            }),
            "");
}

TEST_F(IdentityTest, NoFlagOpensOrBoundsWhatItsAddressDoesNotHave) {
  const auto error = [](const std::string& listen,
                        const std::function<void(ServerOptions&)>& change) {
    ServerOptions options;
    options.listen = listen;
    change(options);
    return std::string(Server::Check(options, Limits()).message());
  };
  const std::string socket = "unix:" + folder_.path() + "/s";
  for (const std::string& local : {std::string("127.0.0.1:0"), std::string("[::1]:0"), socket}) {
    EXPECT_EQ(error(local, [](ServerOptions&) {}), "");
    EXPECT_THAT(error(local, [](ServerOptions& o) { o.allow_unauthenticated_network = true; }),
                HasSubstr("--allow_unauthenticated_network: only this host"));
    EXPECT_THAT(error(local, [](ServerOptions& o) { o.allow_plaintext_network = true; }),
                HasSubstr("--allow_plaintext_network: only this host"));
  }
  const auto metrics = [&error](const std::string& address, bool allowed) {
    return error("127.0.0.1:0", [&](ServerOptions& o) {
      o.metrics_listen = address;
      o.allow_network_metrics = allowed;
    });
  };
  EXPECT_THAT(metrics("", true), HasSubstr("--allow_network_metrics: needs --metrics_listen"));
  EXPECT_THAT(metrics("127.0.0.1:0", true), HasSubstr("--allow_network_metrics: only this host"));
  EXPECT_EQ(metrics("0.0.0.0:0", true), "");
  EXPECT_THAT(metrics("0.0.0.0:0", false), HasSubstr("set --allow_network_metrics"));
  EXPECT_THAT(error("0.0.0.0:0",
                    [](ServerOptions& o) {
                      o.allow_unauthenticated_network = true;
                      o.allow_plaintext_network = true;
                      o.metrics_listen = "0.0.0.0:0";
                    }),
              HasSubstr("set --allow_network_metrics"))
      << "what opens calls does not open metrics";
  for (const int mode : {0660, 0666}) {
    const auto set_mode = [mode](ServerOptions& o) { o.socket_mode = mode; };
    EXPECT_THAT(error("127.0.0.1:0", set_mode), HasSubstr("--socket_mode"));
    EXPECT_EQ(error(socket, set_mode), "");
  }
  const auto set_bound = [](ServerOptions& o) { o.max_connections_per_peer = 1; };
  EXPECT_THAT(error(socket, set_bound), HasSubstr("--max_connections_per_peer"));
  EXPECT_EQ(error("127.0.0.1:0", set_bound), "");
}

}  // namespace
}  // namespace eta::testing
