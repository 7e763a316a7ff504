// Tenants of the shipped server, over a socket: who may call, and how much each gets.
#pragma once

#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calibration/profiles/profile_json.h"
#include "eta/v1/service.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "nlohmann/json.hpp"
#include "service/identity/api_key.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/identity/access_files.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/identity/token_maker.h"
#include "tests/testing/net/generic_call.h"
#include "tests/testing/process/log_lines.h"
#include "tests/testing/profiles/profile_case.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {

using Shown = std::multimap<std::string, std::string>;  // metadata of a call

inline constexpr char kIssuer[] = "https://login.example.org";
inline const std::string kKeyName = "k1";

// A server with --identity and --tenants, and its callers. Every denial must leave a line in its
// log. The good call comes last.
class TenantsFixture : public ::testing::Test {
 protected:
  TenantsFixture() {
    for (const char* tenant : {"acme", "globex", "good"}) {
      Allow(tenant, tenant, {"generate", "calibrate", "stats"});
    }
    Allow("reader", "acme", {"generate"});
    Allow("ops", "ops", {"stats_all"});
    Allow("expired", "acme", {"generate"});
    identity_["api_keys"].back()["expires"] = "2020-01-01T00:00:00Z";
    identity_["jwt"] = {
        {{"issuer", kIssuer},
         {"audiences", {"eta"}},
         {"keys", {{{"kid", kKeyName}, {"algorithm", "ES256"}, {"jwk", signer_.Jwk()}}}},
         {"tenant", "acme"},
         {"roles", {"generate"}}}};
  }
  void Allow(const std::string& id, const std::string& tenant, const nlohmann::json& roles) {
    keys_[id] = *MakeApiKey(id);
    identity_["api_keys"].push_back(KeyEntry(id, tenant, roles, keys_[id]));
  }
  void Start(const std::string& limits = "{}", const std::vector<std::string>& more = {}) {
    std::vector<std::string> flags = {"--identity", folder_.Write("identity", identity_.dump()),
                                      "--tenants", folder_.Write("tenants", limits)};
    flags.insert(flags.end(), more.begin(), more.end());
    server_ = std::make_unique<Replica>(model_.path(), folder_.path() + "/profiles.db", flags);
    ASSERT_TRUE(server_->up()) << server_->process().AwaitExit().errors;
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stats_ = v1::EtaService::NewStub(channel_);
  }
  void TearDown() override {
    if (server_ == nullptr || !server_->up()) return;
    const grpc::Status good = Generate(By("good"));
    EXPECT_TRUE(good.ok()) << "a good call afterwards: " << good.error_message();
    server_->process().Signal(SIGTERM);
    const ServerProcess::Exit exit = server_->process().AwaitExit();
    EXPECT_EQ(exit.code, 0) << exit.errors;
    EXPECT_THAT(LogLines(exit.errors, "denied"), ::testing::SizeIs(denials_));
  }

  static Shown Bearer(const std::string& credential) {
    return {{"authorization", "Bearer " + credential}};
  }
  Shown By(const std::string& id) const { return Bearer(keys_.at(id)); }

  static void Show(const Shown& shown, grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    for (const auto& [key, value] : shown) context.AddMetadata(key, value);
  }
  // Notes a call that has ended.
  grpc::Status Note(const grpc::Status& status, const grpc::ClientContext& context) {
    if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
        status.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
      ++denials_;
    }
    const auto& trailers = context.GetServerTrailingMetadata();
    const auto found = trailers.find("grpc-retry-pushback-ms");
    pushback_ =
        found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
    return status;
  }
  std::unique_ptr<ClientCall> Begin(const Shown& shown, const v1::GenerateRequest& request) {
    auto call = std::make_unique<ClientCall>(*server_->stub);
    Show(shown, call->context);
    call->Start(request);
    return call;
  }
  static v1::GenerateRequest AskFor(int32_t tokens) {
    v1::GenerateRequest request = Ask("Once upon a time");
    request.mutable_stopping()->set_max_tokens(tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    return request;
  }
  grpc::Status Generate(const Shown& shown, const v1::GenerateRequest& request = AskFor(4)) {
    const auto call = Begin(shown, request);
    call->ReadText();
    return Note(call->Finish(), call->context);
  }
  template <typename Stub, typename Request, typename Response>
  grpc::Status Call(Stub& stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, const Shown& shown, Response* response = nullptr) {
    grpc::ClientContext context;
    Show(shown, context);
    Response unread;
    return Note((stub.*method)(&context, request, response == nullptr ? &unread : response),
                context);
  }
  // Calls any method, with a message that would not get far.
  grpc::Status Knock(const std::string& method, const Shown& shown) {
    GenericCall call(channel_, method);
    Show(shown, call.context());
    return Note(call.Exchange(""), call.context());
  }
  grpc::Status Import(const std::string& id, const std::string& name) {
    v1::ImportProfileRequest request;
    request.set_json(*ProfileToJson({.name = name, .version = 1, .content = MakeContent(1, 2, 4)}));
    return Call(*server_->profiles, &v1::ProfileService::Stub::ImportProfile, request, By(id));
  }
  grpc::Status AskStats(const std::string& id, const std::string& tenant, v1::Stats& stats) {
    v1::StatsRequest request;
    if (!tenant.empty()) request.set_tenant(tenant);
    return Call(*stats_, &v1::EtaService::Stub::Stats, request, By(id), &stats);
  }

  const TinyModel model_;
  const TempFolder folder_;
  const SigningKey signer_{TokenAlgorithm::kES256};
  std::map<std::string, std::string> keys_;  // by id
  nlohmann::json identity_;
  std::unique_ptr<Replica> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::EtaService::Stub> stats_;
  std::string pushback_;  // of the last call
  size_t denials_ = 0;    // each must leave a line
};

}  // namespace eta::testing
