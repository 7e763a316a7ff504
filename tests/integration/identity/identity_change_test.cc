// Certificates, roots and keys that change while a server runs.
#include <chrono>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "eta/v1/service.grpc.pb.h"
#include "gmock/gmock.h"
#include "tests/testing/service/identity_fixture.h"

namespace eta::testing {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::system_clock;
using ::testing::HasSubstr;

TEST_F(IdentityTest, CertificatesChangeUnderARunningServer) {
  ServerOptions options = TlsOptions(/*mutual=*/false);
  Serve(options);
  const std::string method = "/eta.v1.EtaService/Stats";
  const CertificateAuthority second("second");
  const auto old = TlsChannel(authority_);
  ASSERT_TRUE(Ask(old, method, {}).ok());
  EXPECT_EQ(Ask(TlsChannel(second), method, {}).error_code(), grpc::StatusCode::UNAVAILABLE);
  const auto becomes = [&](const CertificateAuthority& root) {
    for (int i = 0; i < 200; ++i) {
      if (Ask(TlsChannel(root), method, {}).ok()) return true;
      std::this_thread::sleep_for(milliseconds(50));
    }
    return false;
  };
  WriteOwn(second.Issue());
  EXPECT_TRUE(becomes(second)) << "new connections see the new certificate";
  EXPECT_TRUE(Ask(old, method, {}).ok()) << "and old ones go on";
  EXPECT_FALSE(Ask(TlsChannel(authority_), method, {}).ok());

  folder_.Write("key.pem", "-----BEGIN");
  const auto current = [this] { return server_->Status().files.at(0).reloads.current; };
  for (int i = 0; i < 200 && current(); ++i) std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(current()) << "the broken key was seen";
  EXPECT_TRUE(Ask(TlsChannel(second), method, {}).ok()) << "and what worked stays";
  WriteOwn(authority_.Issue());
  EXPECT_TRUE(becomes(authority_));
  EXPECT_TRUE(current());
}

TEST_F(IdentityTest, ARootOfClientsThatIsTakenAwayLetsNobodyInAnyMore) {
  const ServerOptions options = TlsOptions(/*mutual=*/true);
  Serve(options);
  const std::string method = "/eta.v1.EtaService/Stats";
  const CertificateAuthority second("second");
  const MadeCertificate former = authority_.Issue(), next = second.Issue();
  const auto open = TlsChannel(authority_, former);
  ASSERT_TRUE(Ask(open, method, {}).ok());
  EXPECT_EQ(Ask(TlsChannel(authority_, next), method, {}).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  folder_.Write("ca.pem", second.pem());
  bool taken = false;
  for (int i = 0; i < 200 && !taken; ++i) {
    taken = Ask(TlsChannel(authority_, next), method, {}).ok();
    if (!taken) std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_TRUE(taken);
  EXPECT_EQ(Ask(TlsChannel(authority_, former), method, {}).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Ask(open, method, {}).ok()) << "connections that are open go on";
}

TEST_F(IdentityTest, KeysChangeUnderARunningServer) {
  Serve(Options());
  const std::string method = "/eta.v1.EtaService/Generate";
  const std::string fresh = *MakeApiKey("fresh");
  const std::multimap<std::string, std::string> by_fresh = {{"authorization", "Bearer " + fresh}};
  const auto becomes = [&](const std::multimap<std::string, std::string>& metadata, bool let_in) {
    for (int i = 0; i < 400; ++i) {
      if (LetIn(Ask(method, metadata)) == let_in) return true;
      std::this_thread::sleep_for(milliseconds(50));
    }
    return false;
  };
  ExpectUnknown(Ask(method, by_fresh), "not yet");
  file_["api_keys"].push_back(KeyEntry("fresh", "acme", {"generate"}, fresh));
  folder_.Write("identity.json", file_.dump());
  EXPECT_TRUE(becomes(by_fresh, true));
  EXPECT_TRUE(LetIn(Ask(method, By(Role::kGenerate)))) << "two keys of a tenant at a time";

  for (size_t i = 0; i < file_["api_keys"].size(); ++i) {
    if (file_["api_keys"][i]["id"] == KeyOfRole(Role::kGenerate)) file_["api_keys"].erase(i);
  }
  folder_.Write("identity.json", file_.dump());
  EXPECT_TRUE(becomes(By(Role::kGenerate), false));
  ExpectUnknown(Ask(method, By(Role::kGenerate)), "removed");
  EXPECT_TRUE(LetIn(Ask(method, by_fresh)));

  const absl::Time soon = absl::Now() + absl::Seconds(3);
  file_["api_keys"].back()["expires"] =
      absl::FormatTime(absl::RFC3339_sec, soon, absl::UTCTimeZone());
  folder_.Write("identity.json", file_.dump());
  EXPECT_TRUE(becomes(by_fresh, false));
  EXPECT_GE(absl::Now() + absl::Seconds(1), soon) << "not before, but for the second's fraction";
  ExpectUnknown(Ask(method, by_fresh), "expired");
  StopServing();
  const std::string text = LogText();
  EXPECT_THAT(text, HasSubstr("api_key:" + KeyOfRole(Role::kGenerate) + " is not known"));
  EXPECT_THAT(text, HasSubstr("api_key:fresh has expired"));
}

TEST_F(IdentityTest, AWatchEndsOnceItsKeyMayNoLongerWatch) {
  Serve(Options());
  auto stub = v1::EtaService::NewStub(channel_);
  v1::WatchStatsRequest every;
  every.mutable_interval()->set_nanos(100'000'000);
  const auto end_after = [&](const auto& change) {
    grpc::ClientContext context;
    context.set_deadline(system_clock::now() + seconds(20));
    for (const auto& [key, value] : By(Role::kStats)) context.AddMetadata(key, value);
    const auto watch = stub->WatchStats(&context, every);
    v1::Stats stats;
    EXPECT_TRUE(watch->Read(&stats));
    for (json& key : file_["api_keys"]) {
      if (key["id"] == KeyOfRole(Role::kStats)) change(key);
    }
    folder_.Write("identity.json", file_.dump());
    while (watch->Read(&stats)) {
    }
    return watch->Finish();
  };
  const grpc::Status without_role = end_after([](json& key) { key["roles"] = {"generate"}; });
  EXPECT_THAT(without_role, FailsWith(grpc::StatusCode::PERMISSION_DENIED, "ROLE_REQUIRED"));

  for (json& key : file_["api_keys"]) {
    if (key["id"] == KeyOfRole(Role::kStats)) key["roles"] = {"stats"};
  }
  StopServing();
  Serve(Options());
  stub = v1::EtaService::NewStub(channel_);
  ExpectUnknown(end_after([](json& key) { key["id"] = "another"; }), "taken away");
}

}  // namespace
}  // namespace eta::testing
