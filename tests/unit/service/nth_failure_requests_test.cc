// Every allocation fails once, in turn, while a call says who sends it and while its request is
// taken in: the caller is told that memory is short, and never taken for another or for nobody.
#include <sys/stat.h>

#include <chrono>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "service/calibrate/convert_calibrate.h"
#include "service/generate/convert.h"
#include "service/identity/api_key.h"
#include "service/identity/identity.h"
#include "service/process/descriptors.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/faults/failing_memory.h"
#include "tests/testing/identity/token_maker.h"

namespace eta::testing {
namespace {

using nlohmann::json;

TEST(NthFailureIdentity, AllocationWhileACallSaysWhoSendsIt) {
  const TempFolder folder(FastParent());
  const std::string key = *MakeApiKey("first");
  const SigningKey signing(TokenAlgorithm::kES256);
  const std::string path = folder.Write(
      "identity.json",
      json{
          {"api_keys",
           {{{"id", "first"},
             {"tenant", "acme"},
             {"roles", {"generate", "stats"}},
             {"sha256", absl::BytesToHexString(ApiKeyDigest(key))}}}},
          {"jwt",
           {{{"issuer", "https://login.example.org"},
             {"audiences", {"eta"}},
             {"keys", {{{"kid", "k1"}, {"algorithm", "ES256"}, {"jwk", signing.Jwk()}}}},
             {"tenant", "acme"},
             {"roles", {"generate"}}}}},
          {"peers",
           {{{"spiffe_id", "spiffe://example.org/web"}, {"tenant", "acme"}, {"roles", {"stats"}}}}}}
          .dump());
  chmod(path.c_str(), 0600);
  const auto identity = Identity::Open(path, {}, /*has_client_ca=*/true, [](const auto&) {});
  ASSERT_TRUE(identity.ok()) << identity.status();
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  const std::string bearer_key = "Bearer " + key;
  const std::string bearer_token = "Bearer " + MakeToken(signing, std::string("k1"),
                                                         {{"iss", "https://login.example.org"},
                                                          {"aud", "eta"},
                                                          {"sub", "somebody"},
                                                          {"iat", now},
                                                          {"exp", now + 600}});
  const Shown kinds[] = {
      {.authorization = {bearer_key}},
      {.authorization = {bearer_token}},
      {.certified = true, .spiffe_id = "spiffe://example.org/web"},
  };
  for (const Shown& shown : kinds) {
    EXPECT_GT(FailEachAllocation([&] {
                const auto caller = (*identity)->Of(shown);
                if (!caller.ok()) return caller.status();
                EXPECT_EQ(caller->tenant.id(), "acme");
                return absl::OkStatus();
              }),
              0);
  }
}

TEST(NthFailureCalibrate, AllocationWhileARequestIsConverted) {
  BuildDescriptors();  // as the server does when it starts
  const TinyModel model({.num_layers = 1});
  const auto engine = Start(OptionsFor(model));
  v1::CalibrateRequest request;
  request.set_name("legal");
  request.mutable_target()->mutable_match_dynamic();
  for (int i = 0; i < 4; ++i) {
    (*request.mutable_labels())[absl::StrCat("a-label-that-is-no-short-text-", i)] = "its value";
    request.add_samples()->set_text(absl::StrCat("The quick brown fox and ", i, " others"));
    request.add_samples()->mutable_token_ids()->mutable_ids()->Resize(40, 11);
  }
  // Labels, then a request id, for whose digest the message is copied: not both, since the
  // library's maps do not survive a failed allocation in their copy.
  for (const bool with_id : {false, true}) {
    if (with_id) {
      request.clear_labels();
      request.set_request_id("once");
    }
    EXPECT_GT(FailEachAllocation([&] {
                return ToCalibration(request, engine->info(), engine->limits(), /*max_tokens=*/1000)
                    .status();
              }),
              20);
  }
  EXPECT_GT(FailEachAllocation([&] {
              const auto samples = TokenizeSamples(request, *engine, /*max_tokens=*/1000, {});
              EXPECT_EQ(samples.ok() ? samples->size() : 8, 8u);
              return samples.status();
            }),
            8);
}

TEST(NthFailureChat, AllocationWhileAPromptIsMadeOfIt) {
  BuildDescriptors();  // as the server does when it starts
  const TinyModel model({.num_layers = 1, .chat_template = kTinyChatTemplate});
  const auto engine = Start(OptionsFor(model));
  v1::GenerateRequest message;
  message.set_request_id("a-name-that-is-no-short-text");
  for (int i = 0; i < 4; ++i) {
    v1::ChatMessage& said = *message.mutable_chat()->add_messages();
    said.set_role(i % 2 == 0 ? v1::CHAT_ROLE_USER : v1::CHAT_ROLE_ASSISTANT);
    said.set_text(absl::StrCat("The quick brown fox and ", i, " others"));
  }
  message.mutable_chat()->set_variables(R"({"style": "a text that is not short", "tools": [{}]})");
  EXPECT_GT(FailEachAllocation([&] {
              auto request = ToRequest(message);
              if (!request.ok()) return request.status();
              const auto tokens = engine->Check(*request);
              if (!tokens.ok()) return tokens.status();
              const auto prepared = engine->Prepare(*std::move(request));
              EXPECT_EQ(prepared.ok() ? prepared->prompt.front() : 1, 1);
              return prepared.status();
            }),
            30);
}

}  // namespace
}  // namespace eta::testing
