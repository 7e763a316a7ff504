// A tenant among many that all use the same names. It knows what it did, and so what every answer
// must be. It searches every answer for the data of another tenant.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "calibration/profiles/profile_record.h"
#include "eta/v1/profiles.grpc.pb.h"
#include "eta/v1/service.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/status.h"
#include "tests/testing/identity/tenant_header.h"

namespace eta::testing {

// "canary-0007" is in names that the operator may see (tenant, request ids). "secret-0007" is in
// texts that only their tenant may see (prompts, samples, stop strings, labels).
inline constexpr std::string_view kCanary = "canary-";
inline constexpr std::string_view kSecret = "secret-";
inline constexpr int kTenants = 50;

std::string CanaryOf(int number);
// The first canary or secret in `bytes` of another tenant than `own`; empty if there is none. A
// word without a tenant's number does not count, since an answer may contain it by chance.
std::string ForeignCanary(std::string_view bytes, int own);
// The number of the first canary in `bytes`; -1 if there is none.
int CanaryIn(std::string_view bytes);

// The results of a tenant's calls.
struct TenancyCounts {
  int64_t operations = 0;
  int64_t generated = 0;
  int64_t calibrated = 0;
  int64_t written = 0;  // by other calls
  int64_t found = 0;    // profiles
  int64_t not_found = 0;
  int64_t refused = 0;  // requests for another tenant's counts
};

// One thread at a time.
class TenantClient {
 public:
  // `fitting` is a profile that the served model accepts.
  TenantClient(int number, const std::shared_ptr<grpc::Channel>& channel,
               const ProfileContent& fitting);

  int number() const { return number_; }
  const TenancyCounts& counts() const { return counts_; }

  // Makes one random call and checks its answer completely.
  void Step(std::mt19937& random);
  // Sends a prompt that is the same for all tenants. Returns how many of its tokens were cached.
  int64_t CachedOfTheCommonPrompt();
  // The tenant's own row of Stats.
  v1::TenantStats OwnStats();

 private:
  struct Name {
    int64_t last = 0;                      // the highest version ever given
    std::map<int64_t, uint32_t> versions;  // existing versions, with their seeds
    std::map<std::string, int64_t> aliases;
  };

  template <typename Stub, typename Request, typename Response>
  grpc::Status Call(Stub& stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response& response);
  grpc::Status Answer(const v1::GenerateRequest& request, v1::Finished& finished);
  void CheckStatus(const grpc::Status& status);
  void CheckProfile(const v1::Profile& profile, const std::string& name, int64_t version,
                    uint32_t seed);
  void CheckStored(const v1::Profile& profile, const std::string& name, uint32_t seed);
  // A reference such as "legal", "legal@3" or "legal@stable", and the version that it means; 0:
  // none.
  std::pair<std::string, int64_t> DrawReference(const std::string& name, std::mt19937& random);
  std::string RequestId(std::mt19937& random) const;

  void Import(const std::string& name, std::mt19937& random);
  void Calibrate(const std::string& name, std::mt19937& random);
  void SetAlias(const std::string& name, std::mt19937& random);
  void Delete(const std::string& name);
  void Get(const std::string& name, std::mt19937& random);
  void Export(const std::string& name, std::mt19937& random);
  void List();
  void ListVersions(const std::string& name);
  void Generate(const std::string& name, std::mt19937& random);
  void AskForAnothersStats(std::mt19937& random);

  const int number_;
  const std::string tenant_;
  const std::string secret_;
  const ProfileContent fitting_;
  const std::unique_ptr<v1::EtaService::Stub> eta_;
  const std::unique_ptr<v1::ProfileService::Stub> profiles_;
  const std::unique_ptr<v1::EtaService::Stub> stats_;
  std::map<std::string, Name> names_;
  int64_t output_tokens_ = 0;
  TenancyCounts counts_;
};

}  // namespace eta::testing
