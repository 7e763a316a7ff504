// Processes that are killed at any moment, and servers that are: what was acknowledged is there,
// whole, and besides it at most the step that was under way.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/process/sanitized.h"
#include "tests/testing/profiles/postgres_server.h"
#include "tests/testing/profiles/store_case.h"
#include "tests/testing/profiles/store_model.h"

namespace eta {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

// Promised is that a store that was killed is open again within 2 s; a busy machine takes longer.
constexpr std::chrono::seconds kOpenAgain(8);
constexpr std::chrono::seconds kPromised(2);  // on a machine that does nothing else

const std::vector<Tenant> kTenants = {TenantOf("acme"), TenantOf("other")};

// A process that takes steps and says so after each with one byte.
class Writer {
 public:
  Writer(const StorePlace& place, uint32_t seed, const StoreState& state) {
    std::array<int, 2> ends = {};
    if (pipe(ends.data()) != 0) return;
    child_ = fork();
    if (child_ == 0) TakeSteps(place, seed, state, ends[1]);
    close(ends[1]);
    acknowledgements_ = ends[0];
  }
  ~Writer() { close(acknowledgements_); }

  // Kills it `after` its first acknowledgement; how many there were.
  int Kill(microseconds after) {
    int steps = Wait(steady_clock::now() + std::chrono::seconds(20), 1);
    steps += Wait(steady_clock::now() + after, 1 << 30);
    kill(child_, SIGKILL);
    int status = 0;
    waitpid(child_, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << status;
    return steps + Wait(steady_clock::now() + std::chrono::seconds(20), 1 << 30);
  }

 private:
  [[noreturn]] static void TakeSteps(const StorePlace& place, uint32_t seed, StoreState state,
                                     int acknowledgements) {
    std::mt19937 random(seed);
    const auto store = place.Open();
    while (store != nullptr) {
      if (!Take(DrawStep(random, kTenants), *store, state).ok()) _exit(1);
      if (write(acknowledgements, "x", 1) != 1) _exit(2);
    }
    _exit(3);
  }
  // Counts acknowledgements until then, or as many, or the end.
  int Wait(steady_clock::time_point until, int most) const {
    int count = 0;
    while (count < most) {
      const auto left = std::chrono::duration_cast<microseconds>(until - steady_clock::now());
      pollfd end = {acknowledgements_, POLLIN, 0};
      const timespec timeout = {left.count() / 1'000'000, left.count() % 1'000'000 * 1000};
      if (left.count() <= 0 || ppoll(&end, 1, &timeout, nullptr) <= 0) break;
      char byte = 0;
      if (read(acknowledgements_, &byte, 1) != 1) break;
      ++count;
    }
    return count;
  }

  pid_t child_ = -1;
  int acknowledgements_ = -1;
};

class KillTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  KillTest() : place_(GetParam()) {}
  void SetUp() override {
    if (!place_.missing().empty()) GTEST_SKIP() << place_.missing();
  }
  StorePlace place_;
};
INSTANTIATE_TEST_SUITE_P(Stores, KillTest,
                         ::testing::Values(StoreKind::kSqlite, StoreKind::kPostgres),
                         StoreKindName);

TEST_P(KillTest, AKilledWriterLosesNothingAcknowledged) {
  const int kills = GetParam() == StoreKind::kSqlite ? Rounds(200, 500) : Rounds(40, 200);
  std::mt19937 moments(1);
  StoreState state;
  int stored_unacknowledged = 0;
  steady_clock::duration longest{0};
  for (int round = 0; round < kills; ++round) {
    SCOPED_TRACE(round);
    const auto seed = static_cast<uint32_t>(1000 + round);
    const int steps = Writer(place_, seed, state).Kill(microseconds(moments() % 4000));
    std::mt19937 random(seed);
    for (int i = 0; i < steps; ++i) state = After(state, DrawStep(random, kTenants));
    const StoreState with_next = After(state, DrawStep(random, kTenants));

    const auto killed = steady_clock::now();
    const auto store = place_.Open();
    ASSERT_NE(store, nullptr);
    longest = std::max(longest, steady_clock::now() - killed);
    // A server may still be at work on the last commit: this waits for it, as every writer does.
    ASSERT_TRUE(absl::IsNotFound(store->Delete(kTenants[0], "fence", {})));
    const auto found = Observe(*store, kTenants).value();
    if (found != Visible(state)) {
      ASSERT_EQ(Describe(found), Describe(Visible(with_next)));
      state = with_next;
      ++stored_unacknowledged;
    }
  }
  EXPECT_LE(longest, LongRun() && !testing::kAddressSanitizer ? kPromised : kOpenAgain);
  std::printf("%d kills: open again after %.0f ms at most, %d commits without an answer\n", kills,
              std::chrono::duration<double, std::milli>(longest).count(), stored_unacknowledged);
}

// Requests that go on while the server is killed and started anew, each repeated with its id until
// it is answered: each makes one version, and no version is lost.
TEST(PostgresRestarts, EveryRequestIsDoneOnce) {
  PostgresServer* server = PostgresServer::Get();
  if (server == nullptr) GTEST_SKIP() << PostgresServer::MissingReason();
  const StorePlace place(StoreKind::kPostgres);
  ProfileStoreOptions options = StorePlace::FastOptions();
  options.quota.versions = options.quota.versions_ever;
  const auto store = place.Open(options);
  std::atomic<bool> done = false;
  std::atomic<int> answered = 0;
  std::mutex mutex;
  std::set<int64_t> versions;
  std::vector<std::thread> clients;
  for (int client = 0; client < 3; ++client) {
    clients.emplace_back([&, client] {
      for (int request = 0; !done; ++request) {
        PutProfile put = MakePut("legal", 1);
        put.request_id = absl::StrCat("c", client, "-", request);
        put.payload_digest = std::string(64, '1');
        absl::StatusOr<ProfilePtr> stored = store->Put(kTenants[0], put);
        while (absl::IsUnavailable(stored.status())) stored = store->Put(kTenants[0], put);
        ASSERT_TRUE(stored.ok()) << stored.status();
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(versions.insert((*stored)->version).second) << (*stored)->version;
        ++answered;
      }
    });
  }
  for (int restart = 0; restart < Rounds(3, 50); ++restart) {
    const int before = answered;
    EXPECT_TRUE(Eventually([&] { return answered > before + 20; }));
    server->Kill();
    server->Start();
  }
  const int before = answered;
  EXPECT_TRUE(Eventually([&] { return answered > before + 20; }));
  done = true;
  for (std::thread& client : clients) client.join();

  std::set<int64_t> stored;
  ProfilePage page{.size = 1000, .token = ""};
  do {
    const auto list = store->ListVersions(kTenants[0], "legal", page).value();
    for (const ProfileSummary& profile : list.profiles) stored.insert(profile.version);
    page.token = list.next_token;
  } while (!page.token.empty());
  EXPECT_EQ(stored, versions);
  EXPECT_EQ(*stored.rbegin(), static_cast<int64_t>(stored.size()));
}

}  // namespace
}  // namespace eta
