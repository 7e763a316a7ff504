// Every allocation of ours fails once, in turn, while the server's identity, limits and TLS files
// are loaded, and while they are read again: no crash, no descriptor left open, and in effect is
// what the files said before, or what they say now, whole. (OpenSSL's own allocations succeed.) The
// same while a call says who sends it and while its request is taken in: the caller is told that
// memory is short, and never taken for another or for nobody.
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "service/calibrate/convert_calibrate.h"
#include "service/generate/convert.h"
#include "service/identity/api_key.h"
#include "service/identity/identity.h"
#include "service/identity/tls_files.h"
#include "service/limits/tenant_limits.h"
#include "service/process/descriptors.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/faults/failing_memory.h"
#include "tests/testing/identity/access_files.h"
#include "tests/testing/identity/certificates.h"
#include "tests/testing/identity/token_maker.h"

namespace eta::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Two versions of some files, of which a link names one.
class NthFailureFiles : public ::testing::Test {
 protected:
  NthFailureFiles() {
    for (const char* const version : {"0", "1"}) fs::create_directory(root_ / version);
    Choose(0);
  }
  void Write(int version, const std::string& name, const std::string& text) const {
    WriteSecret(folder_, absl::StrCat(version, "/", name), text);
  }
  void Choose(int version) const {
    fs::create_directory_symlink(std::to_string(version), root_ / "next");
    fs::rename(root_ / "next", root_ / "now");
  }
  std::string Path(const std::string& name) const { return root_ / "now" / name; }

  static size_t OpenDescriptors() {
    return static_cast<size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), {}));
  }
  static void ExpectLoads(const std::function<absl::Status()>& load) {
    const size_t before = OpenDescriptors();
    EXPECT_GT(FailEachAllocation(load), 20);
    EXPECT_EQ(OpenDescriptors(), before);
  }
  // `in_effect` says which version is: 0 or 1, else something that is neither.
  void ExpectReloads(const std::function<void()>& look, const std::function<ReloadStatus()>& status,
                     const std::function<int()>& in_effect) {
    ASSERT_EQ(in_effect(), 0);
    const size_t before = OpenDescriptors();
    int64_t struck = 0;
    int chosen = 0;
    // The files' own thread may have been faster than we: only two runs in which nothing failed are
    // the end.
    for (int64_t n = 1, whole = 0; whole < 2;) {
      SCOPED_TRACE(n);
      chosen = 1 - chosen;
      Choose(chosen);
      FailAllocation(n, Threads::kThisOne);
      bool looked = true;
      try {
        look();
      } catch (const std::bad_alloc&) {
        looked = false;
      }
      const bool failed = EndFailedAllocation();
      EXPECT_EQ(in_effect(), looked && status().current ? chosen : 1 - chosen);
      look();
      EXPECT_EQ(in_effect(), chosen) << "with memory again";
      EXPECT_TRUE(status().current);
      struck += failed ? 1 : 0;
      whole = failed ? 0 : whole + 1;
      if (failed) n = NextToFail(n);
    }
    EXPECT_GT(struck, 10);
    EXPECT_EQ(OpenDescriptors(), before);
  }

  const TempFolder folder_{FastParent()};
  const fs::path root_ = folder_.path();
};

TEST_F(NthFailureFiles, Identity) {
  const std::string keys[] = {*MakeApiKey("first"), *MakeApiKey("second")};
  const SigningKey signing(TokenAlgorithm::kES256);
  for (int version = 0; version < 2; ++version) {
    const json file = {
        {"api_keys",
         {{{"id", version == 0 ? "first" : "second"},
           {"tenant", "acme"},
           {"roles", {"generate", "stats"}},
           {"sha256", absl::BytesToHexString(ApiKeyDigest(keys[version]))},
           {"expires", "2099-01-31T00:00:00Z"}}}},
        {"jwt",
         {{{"issuer", "https://login.example.org"},
           {"audiences", {"eta"}},
           {"keys", {{{"kid", "k1"}, {"algorithm", "ES256"}, {"jwk", signing.Jwk()}}}},
           {"tenant", "acme"},
           {"roles", {"generate"}}}}},
        {"peers",
         {{{"spiffe_id", "spiffe://example.org/web"}, {"tenant", "acme"}, {"roles", {"stats"}}}}}};
    Write(version, "identity.json", file.dump());
  }
  const auto open = [this] {
    return Identity::Open(Path("identity.json"), {}, /*has_client_ca=*/true,
                          [](const absl::Status&) {});
  };
  ExpectLoads([&] { return open().status(); });
  const auto identity = open().value();
  const auto known = [&](const std::string& key) {
    const std::string shown = "Bearer " + key;
    return identity->Of({.authorization = {shown}}).ok();
  };
  ExpectReloads([&] { identity->file()->Poll(); }, [&] { return identity->file()->Status(); },
                [&] { return known(keys[0]) == known(keys[1]) ? -1
                             : known(keys[1])                 ? 1
                                                              : 0; });

  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  const std::string bearer_key = "Bearer " + keys[known(keys[1]) ? 1 : 0];
  const std::string bearer_token = "Bearer " + MakeToken(signing, std::string("k1"),
                                                         {{"iss", "https://login.example.org"},
                                                          {"aud", "eta"},
                                                          {"sub", "somebody"},
                                                          {"iat", now},
                                                          {"exp", now + 600}});
  for (const Shown& shown :
       {Shown{.authorization = {bearer_key}}, Shown{.authorization = {bearer_token}},
        Shown{.certified = true, .spiffe_id = "spiffe://example.org/web"}}) {
    EXPECT_GT(FailEachAllocation([&] {
                const auto caller = identity->Of(shown);
                if (!caller.ok()) return caller.status();
                EXPECT_EQ(caller->tenant.id(), "acme");
                return absl::OkStatus();
              }),
              0);
  }
}

TEST_F(NthFailureFiles, Limits) {
  for (int version = 0; version < 2; ++version) {
    const json file = {{"default", {{"max_calls", 10 + version}}},
                       {"tenants",
                        {{"acme", {{"tokens_per_second", 100}, {"weight", 2}}},
                         {"trial", {{"max_calls", 20 + version}}}}}};
    Write(version, "tenants.json", file.dump());
  }
  const auto open = [this] {
    return TenantLimits::Open(Path("tenants.json"), [](const absl::Status&) {});
  };
  ExpectLoads([&] { return open().status(); });
  const auto limits = open().value();
  const Tenant trial = *Tenant::Parse("trial"), other = *Tenant::Parse("other");
  const auto in_effect = [&] {
    const int64_t version = limits->Of(trial).max_calls - 20;
    return limits->Of(other).max_calls - 10 == version ? static_cast<int>(version) : -1;
  };
  ExpectReloads([&] { limits->Poll(); }, [&] { return limits->file()->Status(); }, in_effect);

  // The thread that looks by itself goes on, and takes the file at its next look.
  const int next = 1 - in_effect();
  FailAllocation(1, Threads::kOthers);
  Choose(next);
  for (int i = 0; i < 200 && in_effect() != next; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(EndFailedAllocation());
  EXPECT_EQ(in_effect(), next);
}

TEST_F(NthFailureFiles, Tls) {
  const CertificateAuthority authority("ours");
  MadeCertificate made[2];
  for (int version = 0; version < 2; ++version) {
    made[version] = authority.Issue();
    Write(version, "cert.pem", made[version].certificate);
    Write(version, "key.pem", made[version].key);
    Write(version, "roots.pem", authority.pem() + CertificateAuthority("others").pem());
  }
  const auto open = [this] {
    return TlsFiles::Open({.certificates = Path("cert.pem"),
                           .key = Path("key.pem"),
                           .client_roots = Path("roots.pem")},
                          "", [](const absl::Status&) {});
  };
  ExpectLoads([&] { return open().status(); });
  const auto files = open().value();
  ExpectReloads(
      [&] { files->file().Poll(); }, [&] { return files->file().Status(); },
      [&] {
        const auto now = files->Current();
        for (int version = 0; version < 2; ++version) {
          if (now->certificates == made[version].certificate && now->key == made[version].key) {
            return version;
          }
        }
        return -1;
      });
}

class NthFailureRequests : public ::testing::Test {
 protected:
  void SetUp() override { BuildDescriptors(); }  // as the server does when it starts
  const TinyModel model_{{.num_layers = 1, .chat_template = kTinyChatTemplate}};
  const std::unique_ptr<Engine> engine_ = Start(OptionsFor(model_));
};

TEST_F(NthFailureRequests, AllocationWhileACalibrationIsConverted) {
  v1::CalibrateRequest request;
  request.set_name("legal");
  request.mutable_target()->mutable_match_dynamic();
  for (int i = 0; i < 16; ++i) {
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
                return ToCalibration(request, engine_->info(), engine_->limits(),
                                     /*max_tokens=*/1000)
                    .status();
              }),
              20);
  }
  EXPECT_GT(FailEachAllocation([&] {
              const auto samples = TokenizeSamples(request, *engine_, /*max_tokens=*/1000, {});
              EXPECT_EQ(samples.ok() ? samples->size() : 32, 32u);
              return samples.status();
            }),
            8);
}

TEST_F(NthFailureRequests, AllocationWhileAPromptIsMadeOfAChat) {
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
              const auto tokens = engine_->Check(*request);
              if (!tokens.ok()) return tokens.status();
              const auto prepared = engine_->Prepare(*std::move(request));
              EXPECT_EQ(prepared.ok() ? prepared->prompt.front() : 1, 1);
              return prepared.status();
            }),
            30);
}

}  // namespace
}  // namespace eta::testing
