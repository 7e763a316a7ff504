// etactl over TLS as a user runs it, against the shipped server: what gets through, and the
// messages when certificates are wrong.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "service/identity/api_key.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/identity/access_files.h"
#include "tests/testing/identity/certificates.h"
#include "tests/testing/process/ctl_process.h"
#include "tests/testing/process/environment.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Flags = std::vector<std::string>;

// Calls that need nothing of the server but to be let in.
const std::vector<Flags> kCommands = {
    {"generate", "--max_tokens", "3", "--ignore_eos", "--quiet", "Once"},
    {"stats", "--json"},
    {"profiles", "list", "--json"},
    {"health"}};

class EtactlTlsProcessTest : public ::testing::Test {
 protected:
  void StartServer(const Flags& more) {
    WriteServerCertificate(authority_);
    Flags flags = {"--model",         model_.path(),
                   "--listen",        "127.0.0.1:0",
                   "--kv_pool_bytes", "16777216",
                   "--profile_store", folder_.path() + "/profiles.db",
                   "--tls_cert",      folder_.path() + "/server.pem",
                   "--tls_key",       folder_.path() + "/server_key.pem"};
    flags.insert(flags.end(), more.begin(), more.end());
    server_.emplace(ETA_BINARY_DIR "/eta-server", flags);
    address_ = server_->AwaitAddress();
    ASSERT_FALSE(address_.empty()) << server_->AwaitExit().errors;
  }
  void StartMutual() { StartServer({"--tls_client_ca", ca_}); }
  void WriteServerCertificate(const CertificateAuthority& authority) const {
    const MadeCertificate made = authority.Issue();
    WriteSecret(folder_, "server_key.pem", made.key);
    folder_.Write("server.pem", made.certificate);
  }

  CtlProcess::Exit Run(Flags command, const Flags& more) const {
    command.insert(command.end(), {"--server", address_});
    command.insert(command.end(), more.begin(), more.end());
    return CtlProcess(command).AwaitExit();
  }
  CtlProcess::Exit Health(const Flags& more) const { return Run({"health"}, more); }
  // The flags that show a client certificate.
  Flags Showing(const MadeCertificate& own) const {
    return {"--tls_ca",   ca_,
            "--tls_cert", folder_.Write("own.pem", own.certificate),
            "--tls_key",  WriteSecret(folder_, "own_key.pem", own.key)};
  }
  // Expects that the call got no further than the connection, and that one line says why.
  static void ExpectUnreachable(const CtlProcess::Exit& exit, const std::string& advice) {
    EXPECT_EQ(exit.code, 3);
    EXPECT_THAT(exit.errors, AllOf(StartsWith("etactl: UNAVAILABLE: "), HasSubstr(advice)));
    EXPECT_EQ(std::count(exit.errors.begin(), exit.errors.end(), '\n'), 1) << exit.errors;
  }
  static void ExpectUsage(const CtlProcess::Exit& exit, const std::string& line) {
    EXPECT_EQ(exit.code, 2);
    EXPECT_EQ(exit.output, "");
    EXPECT_EQ(exit.errors, "etactl: " + line + "\n");
  }

  const TinyModel model_;
  const TempFolder folder_;
  const CertificateAuthority authority_{"ours"}, strangers_{"strangers"};
  const std::string ca_ = folder_.Write("ca.pem", authority_.pem());
  const std::string strangers_ca_ = folder_.Write("strangers.pem", strangers_.pem());
  std::optional<ServerProcess> server_;
  std::string address_;
};

TEST_F(EtactlTlsProcessTest, EveryCommandGoesOverTls) {
  StartServer({});
  for (const Flags& command : kCommands) {
    const auto exit = Run(command, {"--tls_ca", ca_});
    EXPECT_EQ(exit.code, 0) << command[0] << ": " << exit.errors;
  }
  const Environment from_environment("ETA_TLS_CA", ca_);
  EXPECT_EQ(Health({}).output, "SERVING\n");
}

TEST_F(EtactlTlsProcessTest, AServerThatItCannotTrustGetsNothing) {
  StartServer({});
  for (const Flags& command : kCommands) {
    const auto exit = Run(command, {"--tls_ca", strangers_ca_});
    ExpectUnreachable(exit, "the server's certificate is of no root in --tls_ca, or has expired");
  }
  // In a day and a half its certificate will have expired and its root will not.
  const Environment preload("LD_PRELOAD", ETA_SHIFTED_CLOCK_LIBRARY);
  const Environment clock("ETA_SHIFTED_CLOCK", folder_.Write("clock", std::to_string(36 * 3600)));
  const Environment asan("ASAN_OPTIONS", "verify_asan_link_order=0");
  ExpectUnreachable(Health({"--tls_ca", ca_}), "or has expired");
  folder_.Write("clock", "0");
  EXPECT_EQ(Health({"--tls_ca", ca_}).code, 0);
}

TEST_F(EtactlTlsProcessTest, SaysWhenOneSideSpeaksNoTls) {
  StartServer({});
  for (const Flags& command : kCommands) {
    ExpectUnreachable(Run(command, {}), "it may demand TLS (--tls_ca)");
  }
  ServerProcess plain(ETA_BINARY_DIR "/eta-server", {"--model", model_.path(), "--listen",
                                                     "127.0.0.1:0", "--kv_pool_bytes", "16777216"});
  address_ = plain.AwaitAddress();
  ASSERT_FALSE(address_.empty()) << plain.AwaitExit().errors;
  ExpectUnreachable(Health({"--tls_ca", ca_}), "the server speaks no TLS there");
}

TEST_F(EtactlTlsProcessTest, AServerThatDemandsCertificatesLetsInOurs) {
  StartMutual();
  const Flags good = Showing(authority_.Issue({.name = "client"}));
  for (const Flags& command : kCommands) {
    const auto exit = Run(command, good);
    EXPECT_EQ(exit.code, 0) << command[0] << ": " << exit.errors;
    ExpectUnreachable(Run(command, {"--tls_ca", ca_}), "(--tls_cert, --tls_key)");
  }
  ExpectUnreachable(Health(Showing(strangers_.Issue())), "a valid certificate of yours");
}

TEST_F(EtactlTlsProcessTest, RefusesOwnFilesThatNoServerWouldTake) {
  StartMutual();
  ExpectUsage(Health(Showing(authority_.Issue({.days = -1}))),
              "--tls_cert: the certificate has expired");
  const MadeCertificate one = authority_.Issue(), other = authority_.Issue();
  ExpectUsage(Health(Showing({.certificate = one.certificate, .key = other.key})),
              "--tls_key: is not the key of --tls_cert");
  ExpectUsage(Health(Showing({.certificate = one.key, .key = one.key})),
              "--tls_cert: holds no certificates in PEM");
  ExpectUsage(Health({"--tls_ca", folder_.path() + "/server_key.pem"}),
              "--tls_ca: holds no certificates in PEM");
  EXPECT_EQ(Health(Showing(one)).code, 0);
}

TEST_F(EtactlTlsProcessTest, KeysGoOverTls) {
  const std::string key = *MakeApiKey("ours"), unknown = *MakeApiKey("other");
  nlohmann::json identity;
  identity["api_keys"].push_back(KeyEntry("ours", "acme", {"generate", "stats"}, key));
  StartServer({"--identity", folder_.Write("identity.json", identity.dump())});
  const std::string key_file = WriteSecret(folder_, "key", key + "\n");
  for (const Flags& command : kCommands) {
    if (command[0] == "health") continue;  // health is public
    const auto exit = Run(command, {"--tls_ca", ca_, "--api_key_file", key_file});
    EXPECT_EQ(exit.code, 0) << command[0] << ": " << exit.errors;
    for (const Flags& bad :
         {Flags{}, Flags{"--api_key_file", WriteSecret(folder_, "unknown", unknown)}}) {
      Flags flags = {"--tls_ca", ca_};
      flags.insert(flags.end(), bad.begin(), bad.end());
      const auto refused = Run(command, flags);
      EXPECT_EQ(refused.code, 4) << command[0];
      EXPECT_THAT(refused.errors,
                  HasSubstr("etactl: UNAUTHENTICATED: the call's credential is missing or not "
                            "valid [reason CREDENTIAL_INVALID]"));
    }
  }
  const auto forbidden =
      Run({"profiles", "delete", "legal"}, {"--tls_ca", ca_, "--api_key_file", key_file});
  EXPECT_EQ(forbidden.code, 4);
  EXPECT_THAT(forbidden.errors, HasSubstr("PERMISSION_DENIED"));
}

TEST_F(EtactlTlsProcessTest, TheNextCallSeesTheServersNewCertificate) {
  StartServer({});
  ASSERT_EQ(Health({"--tls_ca", ca_}).code, 0);
  ASSERT_EQ(Health({"--tls_ca", strangers_ca_}).code, 3);
  WriteServerCertificate(strangers_);
  bool taken = false;
  for (int i = 0; i < 200 && !taken; ++i) {
    taken = Health({"--tls_ca", strangers_ca_}).code == 0;
    if (!taken) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(taken);
  for (const Flags& command : kCommands) {
    EXPECT_EQ(Run(command, {"--tls_ca", strangers_ca_}).code, 0) << command[0];
    EXPECT_EQ(Run(command, {"--tls_ca", ca_}).code, 3) << command[0];
  }
  EXPECT_TRUE(server_->Running());
}

}  // namespace
}  // namespace eta::testing
