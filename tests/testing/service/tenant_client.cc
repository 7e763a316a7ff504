#include "tests/testing/service/tenant_client.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/profiles/profile_json.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "tests/testing/base/error_details.h"

namespace eta::testing {
namespace {

constexpr std::array kNames = {"legal", "medical", "code", "chat"};
constexpr std::array kAliases = {"stable", "next"};
constexpr size_t kDigits = 4;

// The number that begins at `at`; -1 if none does.
int NumberAt(std::string_view bytes, size_t at) {
  const std::string_view digits = bytes.substr(at, kDigits);
  int number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + kDigits ? number : -1;
}

void SetDeadlineAndTenant(grpc::ClientContext& context, const std::string& tenant) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  context.AddMetadata(kTenantHeader, tenant);
}

}  // namespace

std::string CanaryOf(int number) {
  return absl::StrFormat("%s%04d", kCanary, number);
}

std::string ForeignCanary(std::string_view bytes, int own) {
  for (const std::string_view word : {kCanary, kSecret}) {
    for (size_t at = bytes.find(word); at != bytes.npos; at = bytes.find(word, at + 1)) {
      const int number = NumberAt(bytes, at + word.size());
      if (number >= 0 && number < kTenants && number != own) {
        return std::string(bytes.substr(at, word.size() + kDigits));
      }
    }
  }
  return "";
}

int CanaryIn(std::string_view bytes) {
  const size_t at = bytes.find(kCanary);
  return at == bytes.npos ? -1 : NumberAt(bytes, at + kCanary.size());
}

TenantClient::TenantClient(int number, const std::shared_ptr<grpc::Channel>& channel,
                           const ProfileContent& fitting)
    : number_(number),
      tenant_(CanaryOf(number)),
      secret_(absl::StrFormat("%s%04d", kSecret, number)),
      fitting_(fitting),
      eta_(v1::EtaService::NewStub(channel)),
      profiles_(v1::ProfileService::NewStub(channel)),
      stats_(v1::EtaService::NewStub(channel)) {}

void TenantClient::Step(std::mt19937& random) {
  ++counts_.operations;
  const std::string name = kNames[random() % kNames.size()];
  const uint32_t kind = random() % 1000;
  if (kind < 20) return Generate(name, random);
  if (kind < 25) return Calibrate(name, random);
  if (kind < 45) return Import(name, random);
  if (kind < 70) return SetAlias(name, random);
  if (kind < 80) return Delete(name);
  if (kind < 100) return Export(name, random);
  if (kind < 160) return List();
  if (kind < 220) return ListVersions(name);
  if (kind < 250) return AskForAnothersStats(random);
  if (kind < 270) return static_cast<void>(OwnStats());
  Get(name, random);
}

template <typename Stub, typename Request, typename Response>
grpc::Status TenantClient::Call(Stub& stub,
                                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request, Response& response) {
  grpc::ClientContext context;
  SetDeadlineAndTenant(context, tenant_);
  const grpc::Status status = (stub.*method)(&context, request, &response);
  EXPECT_EQ(ForeignCanary(response.SerializeAsString(), number_), "") << tenant_;
  CheckStatus(status);
  return status;
}

void TenantClient::CheckStatus(const grpc::Status& status) {
  EXPECT_EQ(ForeignCanary(status.error_message(), number_), "") << tenant_;
  EXPECT_EQ(ForeignCanary(status.error_details(), number_), "") << tenant_;
  EXPECT_EQ(status.error_details().find(kSecret), std::string::npos);
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) ++counts_.not_found;
}

grpc::Status TenantClient::Answer(const v1::GenerateRequest& request, v1::Finished& finished) {
  grpc::ClientContext context;
  SetDeadlineAndTenant(context, tenant_);
  const auto reader = eta_->Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    EXPECT_EQ(ForeignCanary(message.SerializeAsString(), number_), "") << tenant_;
    if (message.has_finished()) finished = message.finished();
  }
  const grpc::Status status = reader->Finish();
  CheckStatus(status);
  if (status.ok()) {
    ++counts_.generated;
    output_tokens_ += finished.usage().output_tokens();
  }
  return status;
}

void TenantClient::CheckProfile(const v1::Profile& profile, const std::string& name,
                                int64_t version, uint32_t seed) {
  EXPECT_EQ(profile.name(), name);
  EXPECT_EQ(profile.version(), version) << tenant_ << " " << name;
  EXPECT_EQ(profile.labels().at("owner"), secret_);
  EXPECT_EQ(profile.labels().at("seed"), absl::StrCat(seed)) << tenant_ << " " << name;
}

void TenantClient::CheckStored(const v1::Profile& profile, const std::string& name, uint32_t seed) {
  Name& model = names_[name];
  model.versions[++model.last] = seed;
  CheckProfile(profile, name, model.last, seed);
}

std::pair<std::string, int64_t> TenantClient::DrawReference(const std::string& name,
                                                            std::mt19937& random) {
  const Name& model = names_[name];
  const uint32_t kind = random() % 4;
  if (kind == 0) {
    const auto version = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(model.last + 2));
    return {absl::StrCat(name, "@", version), model.versions.contains(version) ? version : 0};
  }
  if (kind == 1) {
    const std::string alias = kAliases[random() % kAliases.size()];
    const auto named = model.aliases.find(alias);
    return {absl::StrCat(name, "@", alias), named == model.aliases.end() ? 0 : named->second};
  }
  return {name, model.versions.empty() ? 0 : model.versions.rbegin()->first};
}

std::string TenantClient::RequestId(std::mt19937& random) const {
  return absl::StrCat(tenant_, "-", random());
}

void TenantClient::Import(const std::string& name, std::mt19937& random) {
  const auto seed = static_cast<uint32_t>(random());
  ProfileContent content = fitting_;
  content.labels = {{"owner", secret_}, {"seed", absl::StrCat(seed)}};
  v1::ImportProfileRequest request;
  request.set_json(*ProfileToJson({.name = name, .version = 1, .content = content}));
  request.set_request_id(RequestId(random));
  v1::Profile profile;
  const grpc::Status status =
      Call(*profiles_, &v1::ProfileService::Stub::ImportProfile, request, profile);
  ASSERT_TRUE(status.ok()) << status.error_message();
  CheckStored(profile, name, seed);
  ++counts_.written;
}

void TenantClient::Calibrate(const std::string& name, std::mt19937& random) {
  const auto seed = static_cast<uint32_t>(random());
  v1::CalibrateRequest request;
  request.set_name(name);
  request.set_request_id(RequestId(random));
  request.add_samples()->set_text(secret_ + " whereas the party of the first part");
  request.mutable_target()->set_union_density(0.35);
  (*request.mutable_labels())["owner"] = secret_;
  (*request.mutable_labels())["seed"] = absl::StrCat(seed);
  grpc::ClientContext context;
  SetDeadlineAndTenant(context, tenant_);
  const auto reader = eta_->Calibrate(&context, request);
  v1::CalibrateResponse message;
  v1::Profile profile;
  while (reader->Read(&message)) {
    EXPECT_EQ(ForeignCanary(message.SerializeAsString(), number_), "") << tenant_;
    if (message.has_profile()) profile = message.profile();
  }
  const grpc::Status status = reader->Finish();
  CheckStatus(status);
  if (ReasonOf(status) == "CALIBRATION_BUSY") return;
  ASSERT_TRUE(status.ok()) << status.error_message();
  CheckStored(profile, name, seed);
  ++counts_.calibrated;
}

void TenantClient::SetAlias(const std::string& name, std::mt19937& random) {
  Name& model = names_[name];
  v1::SetProfileAliasRequest request;
  request.set_name(name);
  request.set_alias(kAliases[random() % kAliases.size()]);
  request.set_version(static_cast<int64_t>(random() % static_cast<uint64_t>(model.last + 2)));
  v1::SetProfileAliasResponse response;
  const grpc::Status status =
      Call(*profiles_, &v1::ProfileService::Stub::SetProfileAlias, request, response);
  const bool finds = request.version() == 0 ? model.aliases.contains(request.alias())
                                            : model.versions.contains(request.version());
  ASSERT_EQ(status.ok(), finds) << tenant_ << " " << status.error_message();
  if (!finds) {
    EXPECT_EQ(ReasonOf(status), "PROFILE_NOT_FOUND");
  } else if (request.version() == 0) {
    model.aliases.erase(request.alias());
  } else {
    model.aliases[request.alias()] = request.version();
  }
  counts_.written += finds;
}

void TenantClient::Delete(const std::string& name) {
  Name& model = names_[name];
  v1::DeleteProfileRequest request;
  request.set_name(name);
  v1::DeleteProfileResponse response;
  const grpc::Status status =
      Call(*profiles_, &v1::ProfileService::Stub::DeleteProfile, request, response);
  ASSERT_EQ(status.ok(), !model.versions.empty()) << tenant_ << " " << status.error_message();
  counts_.written += status.ok();
  model.versions.clear();
  model.aliases.clear();
}

void TenantClient::Get(const std::string& name, std::mt19937& random) {
  const auto [reference, version] = DrawReference(name, random);
  v1::GetProfileRequest request;
  request.set_profile(reference);
  v1::Profile profile;
  const grpc::Status status =
      Call(*profiles_, &v1::ProfileService::Stub::GetProfile, request, profile);
  ASSERT_EQ(status.ok(), version != 0) << tenant_ << " " << reference << status.error_message();
  if (version == 0) {
    EXPECT_EQ(ReasonOf(status), "PROFILE_NOT_FOUND");
    return;
  }
  ++counts_.found;
  CheckProfile(profile, name, version, names_[name].versions.at(version));
}

void TenantClient::Export(const std::string& name, std::mt19937& random) {
  const auto [reference, version] = DrawReference(name, random);
  v1::ExportProfileRequest request;
  request.set_profile(reference);
  v1::ExportProfileResponse response;
  const grpc::Status status =
      Call(*profiles_, &v1::ProfileService::Stub::ExportProfile, request, response);
  ASSERT_EQ(status.ok(), version != 0) << tenant_ << " " << reference << status.error_message();
  if (version == 0) return;
  ++counts_.found;
  EXPECT_NE(response.json().find(secret_), std::string::npos);
  EXPECT_EQ(response.json().find(tenant_), std::string::npos) << "the file names no tenant";
}

void TenantClient::List() {
  v1::ListProfilesRequest request;
  request.set_page_size(1000);
  v1::ListProfilesResponse response;
  const grpc::Status status =
      Call(*profiles_, &v1::ProfileService::Stub::ListProfiles, request, response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  std::map<std::string, int64_t> expected, found;
  for (const auto& [name, model] : names_) {
    if (!model.versions.empty()) expected[name] = model.versions.rbegin()->first;
  }
  for (const v1::ProfileSummary& summary : response.profiles()) {
    found[summary.name()] = summary.version();
  }
  EXPECT_EQ(found, expected) << tenant_;
}

void TenantClient::ListVersions(const std::string& name) {
  const Name& model = names_[name];
  v1::ListProfileVersionsRequest request;
  request.set_name(name);
  request.set_page_size(1000);
  v1::ListProfileVersionsResponse response;
  const grpc::Status status =
      Call(*profiles_, &v1::ProfileService::Stub::ListProfileVersions, request, response);
  ASSERT_EQ(status.ok(), !model.versions.empty()) << tenant_ << " " << status.error_message();
  std::map<std::string, int64_t> aliases;
  std::vector<int64_t> versions;
  for (const v1::ProfileSummary& summary : response.versions()) {
    versions.push_back(summary.version());
    for (const std::string& alias : summary.aliases()) aliases[alias] = summary.version();
  }
  std::reverse(versions.begin(), versions.end());
  std::vector<int64_t> expected;
  for (const auto& [version, seed] : model.versions) expected.push_back(version);
  EXPECT_EQ(versions, expected) << tenant_;
  EXPECT_EQ(aliases, model.aliases) << tenant_;
}

void TenantClient::Generate(const std::string& name, std::mt19937& random) {
  v1::GenerateRequest request;
  request.set_text(absl::StrCat(secret_, " asks about ", random()));
  request.set_request_id(RequestId(random));
  request.mutable_stopping()->set_max_tokens(1 + static_cast<int32_t>(random() % 3));
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_stopping()->add_stop_strings(secret_ + " stops");
  int64_t version = 0;
  if (random() % 2 == 0) {
    const auto [reference, means] = DrawReference(name, random);
    request.mutable_attention()->set_profile(reference);
    version = means;
    if (version == 0) {
      v1::Finished none;
      const grpc::Status status = Answer(request, none);
      EXPECT_EQ(ReasonOf(status), "PROFILE_NOT_FOUND") << tenant_ << " " << reference;
      return;
    }
  }
  v1::Finished finished;
  const grpc::Status status = Answer(request, finished);
  ASSERT_TRUE(status.ok()) << status.error_message();
}

int64_t TenantClient::CachedOfTheCommonPrompt() {
  v1::GenerateRequest request;
  for (int i = 0; i < 200; ++i) request.mutable_token_ids()->add_ids(300 + 37 * i % 7000);
  request.mutable_stopping()->set_max_tokens(1);
  v1::Finished finished;
  const grpc::Status status = Answer(request, finished);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return finished.usage().cached_tokens();
}

v1::TenantStats TenantClient::OwnStats() {
  v1::Stats stats;
  const grpc::Status status =
      Call(*stats_, &v1::EtaService::Stub::Stats, v1::StatsRequest(), stats);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(stats.tenant(), tenant_);
  EXPECT_FALSE(stats.has_load());
  for (const v1::LoadedProfile& profile : stats.profiles()) EXPECT_EQ(profile.tenant(), tenant_);
  for (const v1::RunningCalibration& running : stats.calibrations()) {
    EXPECT_EQ(running.tenant(), tenant_);
  }
  EXPECT_LE(stats.tenants_size(), 1);
  if (stats.tenants_size() == 0) return {};
  EXPECT_EQ(stats.tenants(0).tenant(), tenant_);
  EXPECT_EQ(stats.tenants(0).output_tokens(), output_tokens_) << tenant_;
  return stats.tenants(0);
}

void TenantClient::AskForAnothersStats(std::mt19937& random) {
  v1::StatsRequest request;
  const int other = number_ + 1 + static_cast<int>(random() % 7);
  request.set_tenant(CanaryOf(other));
  grpc::ClientContext context;
  SetDeadlineAndTenant(context, tenant_);
  v1::Stats stats;
  const grpc::Status status = stats_->Stats(&context, request, &stats);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(stats.SerializeAsString(), "");
  EXPECT_EQ(status.error_message().find(request.tenant()), std::string::npos);
  ++counts_.refused;
}

}  // namespace eta::testing
