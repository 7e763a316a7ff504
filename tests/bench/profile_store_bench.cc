// The cost of stored profiles: 1,000 of them, by one of 10 tenants each, are read at random,
// written and listed, on the store of a URL.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "calibration/profiles/profile_store.h"
#include "calibration/profiles/store/open_profile_store.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta {
namespace {

constexpr int kTenants = 10;

Tenant TenantAt(int i) {
  return TenantOf(absl::StrCat("tenant-", i % kTenants));
}
std::string NameAt(int i) {
  return absl::StrCat("profile-", i / kTenants);
}

void Require(const absl::Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// Prints the median and the 99th percentile of the calls' times.
void Measure(const char* what, int calls, const std::function<absl::Status(int)>& call) {
  std::vector<double> microseconds;
  for (int i = 0; i < calls; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = call(i);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    Require(status);
    microseconds.push_back(took.count());
  }
  std::sort(microseconds.begin(), microseconds.end());
  printf("%-28s %9.1f us  p99 %9.1f us\n", what, microseconds[microseconds.size() / 2],
         microseconds[microseconds.size() * 99 / 100]);
}

void Run(const std::string& url, int profiles, int32_t layers, int32_t heads) {
  auto opened = OpenProfileStore(url, {});
  Require(opened.status());
  ProfileStore& store = **opened;
  PutProfile put = MakePut("", 1);
  put.content = MakeContent(1, layers, heads);
  Measure("Put", profiles, [&](int i) {
    put.name = NameAt(i);
    const Tenant tenant = TenantAt(i);
    if (const auto s = store.Put(tenant, put); !s.ok()) return s.status();
    return i == 0 ? store.SetAlias(tenant, {put.name, "stable", 1, {}}) : absl::OkStatus();
  });
  std::mt19937 random(1);
  const int reads = 10 * profiles;
  const auto get = [&](const ProfileSelector& selector) {
    return [&store, &random, profiles, selector](int) {
      const int i = static_cast<int>(random() % static_cast<unsigned>(profiles));
      return store.Get(TenantAt(i), NameAt(i), selector).status();
    };
  };
  Measure("Get, newest", reads, get(Newest()));
  Measure("Get, version", reads, get(int64_t{1}));
  Measure("Get, alias", reads,
          [&](int) { return store.Get(TenantAt(0), NameAt(0), std::string("stable")).status(); });
  Measure("Get, of nobody", reads, [&](int i) {
    const absl::Status status = store.Get(TenantAt(i), "none", Newest()).status();
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  });
  Measure("List, 50 of them", profiles,
          [&](int i) { return store.List(TenantAt(i), {}).status(); });
}

}  // namespace
}  // namespace eta

int main(int argc, char** argv) {
  CLI::App app("Cost of profiles in a store that is empty before");
  std::string url = "sqlite:profile_store_bench.db";
  int profiles = 1000;
  int32_t layers = 8, heads = 8;
  app.add_option("--profile_store", url, "sqlite:PATH or postgresql://...")->capture_default_str();
  app.add_option("--profiles", profiles)->capture_default_str();
  app.add_option("--layers", layers)->capture_default_str();
  app.add_option("--heads", heads)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  eta::Run(url, profiles, layers, heads);
}
