// Bad profiles and calibrations at the shipped server with a store of its own. A good call works
// afterwards.
#include <bit>
#include <cmath>
#include <csignal>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/sha256.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/net/generic_call.h"
#include "tests/testing/profiles/sqlite_client.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr size_t kDigestSize = 64;  // at the end of a stored record

class BadProfileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Start();
    ASSERT_TRUE(server_->Calibrate(SmallCalibration("good")).has_value())
        << server_->status.error_message();
  }
  void TearDown() override {
    EXPECT_EQ(server_->Generate("good").profile(), "good") << "a good call afterwards";
    EXPECT_TRUE(server_->status.ok()) << server_->status.error_message();
  }
  void Start() {
    server_ = std::make_unique<Replica>(model_.path(), store_);
    ASSERT_TRUE(server_->up()) << server_->process().AwaitExit().errors;
  }

  // The field that INVALID_ARGUMENT names; for another status its code.
  static std::string BadField(const grpc::Status& status) {
    if (status.error_code() != StatusCode::INVALID_ARGUMENT) {
      return absl::StrCat("code ", static_cast<int>(status.error_code()));
    }
    return ReasonOf(status) == "MALFORMED_MESSAGE" ? "malformed" : FieldOf(status);
  }
  std::string CalibrateField(const v1::CalibrateRequest& request) {
    EXPECT_FALSE(server_->Calibrate(request).has_value());
    EXPECT_EQ(server_->progress, 0) << "no work is done";
    return BadField(server_->status);
  }

  template <typename Method, typename Request>
  grpc::Status Call(Method method, const Request& request) {
    server_->Call(method, request);
    return server_->status;
  }

  // The stored bytes of the newest version.
  std::string Record(const std::string& name) const {
    return absl::HexStringToBytes(SqliteClient{store_}(
        "SELECT hex(record) FROM eta_profiles WHERE name = '" + name + "' ORDER BY version"));
  }
  // Replaces the record beside the server, with a valid digest.
  void Replace(const std::string& name, std::string record) const {
    record.resize(record.size() - kDigestSize);
    record += Sha256Hex(record).value();
    SqliteClient{store_}("UPDATE eta_profiles SET record = x'" + absl::BytesToHexString(record) +
                         "' WHERE name = '" + name + "'");
  }
  // Changes a profile beside the server and restarts the server. Returns what Generate says.
  grpc::Status StatusWith(const std::string& name, const std::string& record) {
    server_.reset();
    Replace(name, record);
    Start();
    server_->Generate(name);
    return server_->status;
  }

  const TinyModel model_;
  const TempFolder folder_;
  const std::string store_ = folder_.path() + "/profiles.db";
  std::unique_ptr<Replica> server_;
};

// gRPC refuses what no method takes; each method refuses what exceeds its own limit.
TEST_F(BadProfileTest, MessagesOverTheLimitOfTheirMethod) {
  constexpr size_t kMiB = 1 << 20;
  const auto refusal = [this](const char* method, size_t bytes) {
    const auto channel =
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    const grpc::Status status = GenericCall(channel, method).Exchange(std::string(bytes, 'x'));
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << method;
    return ReasonOf(status);
  };
  EXPECT_EQ(refusal(kGenerateMethod, kMiB + 1), "MESSAGE_TOO_LARGE");
  EXPECT_EQ(refusal("/eta.v1.ProfileService/ImportProfile", 5 * kMiB + 1), "MESSAGE_TOO_LARGE");
  EXPECT_EQ(refusal("/eta.v1.EtaService/Calibrate", 8 * kMiB + 1), "");
  v1::CalibrateRequest longest = SmallCalibration("legal");
  longest.clear_samples();
  longest.GetReflection()->MutableUnknownFields(&longest)->AddLengthDelimited(
      1000, std::string(8 * kMiB - 1000, 'x'));
  EXPECT_EQ(CalibrateField(longest), "samples") << "it was read";
}

// bad input: Profiles | unknown profile, version or alias | NOT_FOUND, PROFILE_NOT_FOUND
TEST_F(BadProfileTest, UnknownProfilesVersionsAndAliasesAreNotFound) {
  for (const std::string reference : {"absent", "good@7", "good@stable"}) {
    server_->Generate(reference);
    EXPECT_THAT(server_->status, FailsWith(StatusCode::NOT_FOUND, "PROFILE_NOT_FOUND"))
        << reference;
    server_->Get(reference);
    EXPECT_EQ(ReasonOf(server_->status), "PROFILE_NOT_FOUND");
  }
}

// One allow-list for the name in every field of every call.
TEST_F(BadProfileTest, NamesOutsideTheAllowListAreInvalidEverywhere) {
  using Stub = v1::ProfileService::Stub;
  const std::string json = server_->Export("good");
  for (const std::string& name : {std::string("../../etc/passwd"), std::string("a\0b", 3),
                                  std::string("a'; DROP TABLE eta_profiles; --")}) {
    SCOPED_TRACE(absl::CEscape(name));
    EXPECT_EQ(CalibrateField(SmallCalibration(name)), "name");
    server_->Generate(name);
    EXPECT_EQ(BadField(server_->status), "attention.profile");
    server_->Get(name);
    EXPECT_EQ(BadField(server_->status), "profile");
    v1::ExportProfileRequest exported;
    exported.set_profile(name);
    EXPECT_EQ(BadField(Call(&Stub::ExportProfile, exported)), "profile");
    v1::ImportProfileRequest import;
    import.set_json(json);
    import.set_name(name);
    EXPECT_EQ(BadField(Call(&Stub::ImportProfile, import)), "name");
    v1::ListProfileVersionsRequest list;
    list.set_name(name);
    EXPECT_EQ(BadField(Call(&Stub::ListProfileVersions, list)), "name");
    v1::DeleteProfileRequest removal;
    removal.set_name(name);
    EXPECT_EQ(BadField(Call(&Stub::DeleteProfile, removal)), "name");
    v1::PromoteProfileRequest promotion;
    promotion.set_name(name);
    promotion.set_version(1);
    EXPECT_EQ(BadField(Call(&Stub::PromoteProfile, promotion)), "name");
    v1::DeleteProfileVersionRequest version;
    version.set_name(name);
    version.set_version(1);
    EXPECT_EQ(BadField(Call(&Stub::DeleteProfileVersion, version)), "name");
    v1::SetProfileAliasRequest alias;
    alias.set_version(1);
    alias.set_alias("stable");
    alias.set_name(name);
    EXPECT_EQ(BadField(Call(&Stub::SetProfileAlias, alias)), "name");
    alias.set_name("good");
    alias.set_alias(name);
    EXPECT_EQ(BadField(Call(&Stub::SetProfileAlias, alias)), "alias");
  }
  EXPECT_THAT(server_->Versions("good"), ::testing::ElementsAre(1)) << "nothing was changed";
}

// A profile as another build would leave it.
TEST_F(BadProfileTest, AProfileOfAnotherSchemaWaitsForItsBuild) {
  ASSERT_TRUE(server_->Calibrate(SmallCalibration("newer")).has_value());
  std::string record = Record("newer");
  ASSERT_EQ(record.substr(0, 8), std::string("ETAP\6\0\0\0", 8));
  for (const char schema : {'\5', '\7'}) {
    record[4] = schema;
    const grpc::Status status = StatusWith("newer", record);
    EXPECT_THAT(status, FailsWith(StatusCode::FAILED_PRECONDITION, "PROFILE_SCHEMA_MISMATCH"));
  }
}

// Beyond what a checksum finds: who can write to the store can also write a checksum.
TEST_F(BadProfileTest, StoredThresholdsThatAreNoNumbersAreDataLoss) {
  ASSERT_TRUE(server_->Calibrate(SmallCalibration("odd")).has_value());
  const std::string sound = Record("odd");
  std::string record = sound;  // the last threshold is in front of a byte and the digest
  const auto bits = std::bit_cast<uint32_t>(std::nanf(""));
  for (size_t i = 0; i < 4; ++i) {
    record[record.size() - kDigestSize - 1 - 4 + i] = static_cast<char>(bits >> (8 * i));
  }
  EXPECT_THAT(StatusWith("odd", record), FailsWith(StatusCode::DATA_LOSS, "PROFILE_CORRUPT"));
  EXPECT_EQ(StatusWith("odd", sound).error_code(), StatusCode::OK)
      << "the way there changes nothing";
}

// What the engine makes of samples; CalibrateTest has the other fields.
TEST_F(BadProfileTest, CalibrationsThatMakeNoSenseCostNothing) {
  const auto field = [this](auto change) {
    v1::CalibrateRequest request = SmallCalibration("legal");
    change(request);
    return CalibrateField(request);
  };
  using Request = v1::CalibrateRequest;
  // The default target judges a perplexity, for which one sequence of 256 tokens is too few.
  EXPECT_EQ(field([](Request& r) { r.clear_target(); }), "samples");
  EXPECT_EQ(field([](Request& r) { r.clear_allow_loss(); }), "samples") << "for any other verdict";
  EXPECT_EQ(field([](Request& r) {
              for (auto& sample : *r.mutable_samples()) sample.set_document("one");
            }),
            "samples");
  EXPECT_EQ(field([](Request& r) {
              for (auto& sample : *r.mutable_samples()) sample = r.samples(0);
            }),
            "samples");
  EXPECT_EQ(field([](Request& r) { r.mutable_samples(2)->set_document(std::string(256, 'x')); }),
            "samples[2].document");
  const double nan = std::nan("");
  EXPECT_EQ(field([&](Request& r) {
              r.mutable_target()->mutable_dynamic_union_density()->set_max_perplexity_increase(nan);
            }),
            "target.dynamic_union_density.max_perplexity_increase");
  EXPECT_EQ(field([&](Request& r) { r.mutable_target()->set_retained_mass(nan); }),
            "target.retained_mass");
  EXPECT_EQ(field([&](Request& r) { r.set_min_retrieval(nan); }), "min_retrieval");
  EXPECT_EQ(field([](Request& r) {
              r.set_sequence_tokens(64);  // windows so short would be mostly needles
              r.set_min_retrieval(0.95);
            }),
            "samples");
  server_->Get("legal");
  EXPECT_EQ(ReasonOf(server_->status), "PROFILE_NOT_FOUND");
}

TEST_F(BadProfileTest, CalibrationsOfWhatTheModelDoesNotDoCostNothing) {
  v1::CalibrateRequest request = SmallCalibration("legal");
  request.mutable_target()->set_retained_mass(0.95);
  EXPECT_FALSE(server_->Calibrate(request).has_value());
  EXPECT_EQ(server_->progress, 0);
  EXPECT_THAT(server_->status, FailsWith(StatusCode::FAILED_PRECONDITION, "UNSUPPORTED_BY_MODEL"));
  EXPECT_THAT(server_->status.error_message(), HasSubstr("this model predicts thresholds"));
}

// A model of noise finds no needle, so that none can be promised.
TEST_F(BadProfileTest, ARetrievalThatIsNotKeptStoresNothing) {
  v1::CalibrateRequest request = SmallCalibration("legal");
  request.set_min_retrieval(1.0);
  EXPECT_FALSE(server_->Calibrate(request).has_value());
  EXPECT_THAT(server_->status, FailsWith(StatusCode::FAILED_PRECONDITION, "TARGET_UNREACHABLE"));
  EXPECT_EQ(MetadataOf(server_->status, "target"), "1");
  EXPECT_LT(std::stod(MetadataOf(server_->status, "nearest")), 1.0);
  server_->Get("legal");
  EXPECT_EQ(ReasonOf(server_->status), "PROFILE_NOT_FOUND");
}

TEST_F(BadProfileTest, FilesOfRelativeProfilesThatMakeNoSenseAreRefused) {
  auto file = nlohmann::ordered_json::parse(server_->Export("good"));
  file["name"] = "relative";
  file["relative_threshold"] = -3.9;
  file["schema_version"] = 8;
  file["evidence"]["divergence"] = nullptr;
  file["thresholds"] = nullptr;
  file["z"] = 0;
  file["floor"] = "none";
  file["index"] = "outlier";
  file["target"] = {{"kind", "retained_mass"}, {"value", 0.95}};
  const auto field = [&](auto change) {
    auto changed = file;
    change(changed);
    server_->Import(changed.dump());
    const std::string named = BadField(server_->status);
    return named.starts_with("json.") ? named.substr(5) : named;
  };
  using J = nlohmann::ordered_json;
  EXPECT_EQ(field([](J&) {}), "content_sha256") << "sound but for the digest";
  EXPECT_EQ(field([](J& j) { j["relative_threshold"] = -100.5; }), "relative_threshold");
  EXPECT_EQ(field([](J& j) { j["z"] = 1.5; }), "z");
  EXPECT_EQ(field([](J& j) { j["weights"] = 8; }), "weights");
  EXPECT_EQ(field([](J& j) { j["confirm"] = "true"; }), "confirm");
  EXPECT_EQ(field([](J& j) { j["prefill"] = "dense"; }), "prefill");
  EXPECT_EQ(field([](J& j) { j["sink_blocks"] = 1025; }), "sink_blocks");
  EXPECT_EQ(field([](J& j) { j["evidence"]["single_needles"]["kept"] = 7; }),
            "evidence.single_needles");
  EXPECT_EQ(field([](J& j) { j["evidence"].erase("divergence"); }), "evidence.divergence");
  EXPECT_EQ(field([](J& j) {
              j["evidence"]["divergence"] = {{"nats", -0.1}, {"rows", 5}};
            }),
            "evidence.divergence");
  file["schema_version"] = 7;  // of an earlier estimate of masses
  server_->Import(file.dump());
  EXPECT_THAT(server_->status,
              FailsWith(StatusCode::FAILED_PRECONDITION, "PROFILE_SCHEMA_MISMATCH"));
  server_->Get("relative");
  EXPECT_EQ(ReasonOf(server_->status), "PROFILE_NOT_FOUND");
}

// Two at once over one server, and then both ids again.
TEST_F(BadProfileTest, OfTwoCalibrationsOfOneVersionOneIsStored) {
  std::vector<grpc::Status> statuses(2);
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back([&, i] {
      v1::CalibrateRequest request = SmallCalibration("legal");
      request.set_expected_version(0);
      const auto stub = v1::EtaService::NewStub(
          grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
      do {
        grpc::ClientContext context;
        const auto reader = stub->Calibrate(&context, request);
        v1::CalibrateResponse message;
        while (reader->Read(&message)) {
        }
        statuses[static_cast<size_t>(i)] = reader->Finish();
      } while (ReasonOf(statuses[static_cast<size_t>(i)]) == "CALIBRATION_BUSY");
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_NE(statuses[0].ok(), statuses[1].ok());
  // The name is taken.
  EXPECT_EQ(ReasonOf(statuses[statuses[0].ok() ? 1 : 0]), "PROFILE_EXISTS");
  EXPECT_THAT(server_->Versions("legal"), ::testing::ElementsAre(1));
  v1::CalibrateRequest stale = SmallCalibration("legal");
  stale.set_expected_version(2);
  server_->Calibrate(stale);
  EXPECT_THAT(server_->status, FailsWith(StatusCode::ABORTED, "VERSION_MISMATCH"));
  EXPECT_FALSE(DetailOf<google::rpc::RetryInfo>(server_->status).has_value());
  EXPECT_EQ(MetadataOf(server_->status, "present_version"), "1");
}

TEST_F(BadProfileTest, PromotionsAndDeletionsThatMakeNoSenseChangeNothing) {
  using Stub = v1::ProfileService::Stub;
  const std::string json = server_->Export("good");
  ASSERT_EQ(server_->Import(json).version(), 2) << server_->status.error_message();
  v1::SetProfileAliasRequest alias;
  alias.set_name("good");
  alias.set_alias("stable");
  alias.set_version(2);
  ASSERT_TRUE(Call(&Stub::SetProfileAlias, alias).ok());
  v1::PromoteProfileRequest promotion;
  v1::DeleteProfileVersionRequest removal;
  promotion.set_name("good");
  removal.set_name("good");
  for (const int64_t bad : {int64_t{0}, std::numeric_limits<int64_t>::min()}) {
    promotion.set_version(bad);
    removal.set_version(bad);
    EXPECT_EQ(BadField(Call(&Stub::PromoteProfile, promotion)), "version");
    EXPECT_EQ(BadField(Call(&Stub::DeleteProfileVersion, removal)), "version");
  }
  promotion.set_version(std::numeric_limits<int64_t>::max());
  removal.set_version(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ReasonOf(Call(&Stub::PromoteProfile, promotion)), "PROFILE_NOT_FOUND");
  EXPECT_EQ(ReasonOf(Call(&Stub::DeleteProfileVersion, removal)), "PROFILE_NOT_FOUND");
  promotion.set_version(1);
  const grpc::Status behind = Call(&Stub::PromoteProfile, promotion);
  EXPECT_EQ(behind.error_code(), StatusCode::ABORTED);
  EXPECT_EQ(ReasonOf(behind), "VERSION_MISMATCH") << "version 2 is the newest";
  EXPECT_EQ(MetadataOf(behind, "present_version"), "2");
  removal.set_version(2);
  const grpc::Status named = Call(&Stub::DeleteProfileVersion, removal);
  EXPECT_THAT(named, FailsWith(StatusCode::FAILED_PRECONDITION, "VERSION_HAS_ALIAS"));
  EXPECT_EQ(MetadataOf(named, "alias"), "stable");
  EXPECT_THAT(server_->Versions("good"), ::testing::ElementsAre(2, 1));
  EXPECT_EQ(server_->Get("good").version(), 2);
}

TEST_F(BadProfileTest, ARequestIdIsOfOneRequest) {
  v1::CalibrateRequest request = SmallCalibration("legal");
  request.set_request_id("once");
  const auto first = server_->Calibrate(request);
  ASSERT_TRUE(first.has_value()) << server_->status.error_message();
  const auto again = server_->Calibrate(request);
  ASSERT_TRUE(again.has_value()) << server_->status.error_message();
  EXPECT_EQ(again->SerializeAsString(), first->SerializeAsString());
  EXPECT_EQ(server_->progress, 0);
  v1::CalibrateRequest staged = request;
  staged.set_stage(true);
  request.set_offset(0.25f);
  for (const v1::CalibrateRequest& other : {request, staged}) {
    EXPECT_FALSE(server_->Calibrate(other).has_value());
    EXPECT_THAT(server_->status, FailsWith(StatusCode::ALREADY_EXISTS, "REQUEST_ID_REUSED"));
  }
  request.set_request_id(std::string("a\0b", 3));
  EXPECT_EQ(CalibrateField(request), "request_id");
  v1::GenerateRequest generate = Ask("x");
  generate.set_request_id(request.request_id());
  server_->Generate(generate, "");
  EXPECT_EQ(BadField(server_->status), "request_id");
  EXPECT_THAT(server_->Versions("legal"), ::testing::ElementsAre(1));
}

}  // namespace
}  // namespace eta::testing
