// eta-bench profiles: the cost of stored profiles, by one of 10 tenants each. They are written,
// read at random and listed, on the store of a URL, which is empty before.

#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "calibration/profiles/profile_store.h"
#include "calibration/profiles/store/open_profile_store.h"
#include "tests/bench/eta_bench/eta_bench.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta::bench {
namespace {

constexpr int kTenants = 10;

struct Options {
  std::string url = "sqlite:eta_bench_profiles.db";
  int profiles = 1000;
  int32_t layers = 8;
  int32_t heads = 8;
};

Tenant TenantAt(int i) {
  return TenantOf(absl::StrCat("tenant-", i % kTenants));
}
std::string NameAt(int i) {
  return absl::StrCat("profile-", i / kTenants);
}

Json Measure(const char* what, int calls, const std::function<absl::Status(int)>& call) {
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) {
    const Stopwatch watch;
    const absl::Status status = call(i);
    seconds.push_back(watch.seconds());
    RequireOk(status);
  }
  return {{"call", what},
          {"median_microseconds", Quantile(seconds, 0.5) * 1e6},
          {"p99_microseconds", Quantile(seconds, 0.99) * 1e6}};
}

Json Run(const Options& options) {
  const auto store = Require(OpenProfileStore(options.url, {}));
  PutProfile put = MakePut("", 1);
  put.content = MakeContent(1, options.layers, options.heads);
  Json rows = Json::array();
  rows.push_back(Measure("Put", options.profiles, [&](int i) {
    put.name = NameAt(i);
    const Tenant tenant = TenantAt(i);
    if (const auto s = store->Put(tenant, put); !s.ok()) return s.status();
    return i == 0 ? store->SetAlias(tenant, {put.name, "stable", 1, {}}) : absl::OkStatus();
  }));
  std::mt19937 random(1);
  const int reads = 10 * options.profiles;
  const auto get = [&](const ProfileSelector& selector) {
    return [&, selector](int) {
      const int i = static_cast<int>(random() % static_cast<unsigned>(options.profiles));
      return store->Get(TenantAt(i), NameAt(i), selector).status();
    };
  };
  rows.push_back(Measure("Get, newest", reads, get(Newest())));
  rows.push_back(Measure("Get, version", reads, get(int64_t{1})));
  rows.push_back(Measure("Get, alias", reads, [&](int) {
    return store->Get(TenantAt(0), NameAt(0), std::string("stable")).status();
  }));
  rows.push_back(Measure("Get, of nobody", reads, [&](int i) {
    const absl::Status status = store->Get(TenantAt(i), "none", Newest()).status();
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }));
  rows.push_back(Measure("List, 50 of them", options.profiles,
                         [&](int i) { return store->List(TenantAt(i), {}).status(); }));
  return {{"bench", "profiles"}, {"profiles", options.profiles}, {"rows", std::move(rows)}};
}

void Print(const Json& report) {
  PrintTable(report["rows"],
             {{"call", "call"}, {"us", "median_microseconds", 1}, {"p99", "p99_microseconds", 1}});
}

}  // namespace

void AddProfilesCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("profiles", "Cost of profiles in a store that is empty before");
  command->add_option("--profile_store", options->url, "sqlite:PATH or postgresql://...")
      ->capture_default_str();
  command->add_option("--profiles", options->profiles)->capture_default_str();
  command->add_option("--layers", options->layers)->capture_default_str();
  command->add_option("--heads", options->heads)->capture_default_str();
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
