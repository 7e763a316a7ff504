// Power cuts, I/O errors and full disks under the SQLite store, at every kind of operation: what
// was acknowledged stays, nothing is half there, no version comes twice.
#include <sqlite3.h>

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "calibration/profiles/store/open_profile_store.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/faults/faulty_disk.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/profiles/store_case.h"
#include "tests/testing/profiles/store_model.h"

namespace eta {
namespace {

using absl::StatusCode;

// Without the thread that looks for changes, so that the same seed does the same.
ProfileStoreOptions Options() {
  ProfileStoreOptions options = StorePlace::FastOptions();
  options.poll_interval = std::chrono::hours(1);
  return options;
}

// Checkpoints come after 12 pages instead of 1000, so that a short life has many of them.
class FrequentCheckpoints {
 public:
  FrequentCheckpoints() { sqlite3_auto_extension(Entry()); }
  ~FrequentCheckpoints() { sqlite3_cancel_auto_extension(Entry()); }

 private:
  static int Set(sqlite3* handle, char** /*error*/, const void* /*api*/) {
    return sqlite3_wal_autocheckpoint(handle, 12);
  }
  static void (*Entry())() { return reinterpret_cast<void (*)()>(Set); }
};

// A store on a disk that fails, beside the model of what it has acknowledged.
class FailingStore {
 public:
  // The file is there, so that nobody waits for the disk that is really below.
  explicit FailingStore(uint32_t seed)
      : disk(seed), random(seed + 1), path_(folder_.Write("db", "")) {}

  absl::Status Open() {
    auto opened = OpenProfileStore(path_, Options());
    if (opened.ok()) store = *std::move(opened);
    return opened.status();
  }
  // Takes steps until one fails or `steps` are done; the one that failed may have been stored.
  absl::Status Live(int steps) {
    for (int i = 0; i < steps; ++i) {
      const StoreStep step = DrawStep(random, tenants);
      if (absl::Status s = Take(step, *store, state); !s.ok()) {
        under_way = step;
        return s;
      }
    }
    return absl::OkStatus();
  }
  // What is wrong with the store as it is found, empty if nothing. What was under way is settled.
  std::string Check() {
    if (!store->Health().ok()) return store->Health().ToString();
    const absl::StatusOr<StoreState> found = Observe(*store, tenants);
    if (!found.ok()) return found.status().ToString();
    if (*found != Visible(state)) {
      const StoreState after = under_way ? After(state, *under_way) : state;
      if (*found != Visible(after)) {
        return absl::StrCat("acknowledged:\n", Describe(Visible(state)), "found:\n",
                            Describe(*found));
      }
      state = after;
    } else if (under_way && under_way->kind == StoreStep::kPut) {
      // It was not stored: the same request does it now, once.
      if (absl::Status s = Take(*under_way, *store, state); !s.ok()) return s.ToString();
    }
    under_way.reset();
    return Integrity();
  }

  const std::vector<Tenant> tenants = {TenantOf("acme"), TenantOf("other")};
  FaultyDisk disk;
  std::mt19937 random;
  StoreState state;
  std::optional<StoreStep> under_way;
  std::unique_ptr<ProfileStore> store;

 private:
  std::string Integrity() const {
    sqlite3* handle = nullptr;
    std::string answer;
    sqlite3_open(path_.c_str(), &handle);
    sqlite3_exec(
        handle, "PRAGMA integrity_check",
        [](void* text, int, char** values, char**) {
          static_cast<std::string*>(text)->append(values[0]);
          return 0;
        },
        &answer, nullptr);
    sqlite3_close(handle);
    return answer == "ok" ? "" : "integrity: " + answer;
  }

  TempFolder folder_{FastParent()};
  const std::string path_;
};

// One disk through several power cuts; what is wrong after one, empty if nothing.
std::string ThroughPowerCuts(uint32_t seed, int cuts, bool lying) {
  FailingStore life(seed);
  if (lying) life.disk.LieAboutSyncs();
  for (int cut = 0; cut < cuts; ++cut) {
    life.disk.Arm(DiskFault::kPowerCut, 1 + life.random() % 80);
    while (!life.disk.struck()) {
      absl::Status status = life.Open();
      // Closing checkpoints, so the power may go then too.
      if (status.ok()) status = life.Live(1 + life.random() % 15);
      life.store.reset();
      if (!status.ok() && !life.disk.struck()) return status.ToString();
    }
    life.disk.Restart();
    // The next cut may come while it recovers from this one.
    if (life.random() % 4 == 0) {
      life.disk.Arm(DiskFault::kPowerCut, 1 + life.random() % 8);
      (void)life.Open();
      life.store.reset();
      life.disk.Restart();
    }
    if (absl::Status s = life.Open(); !s.ok()) return s.ToString();
    if (std::string wrong = life.Check(); !wrong.empty()) {
      return absl::StrCat("seed ", seed, ", cut ", cut, ": ", wrong);
    }
    life.store.reset();
  }
  return {};
}

constexpr int kCutsPerDisk = 5;

TEST(PowerCut, NothingAcknowledgedIsLost) {
  const FrequentCheckpoints frequent;
  const int disks = Rounds(500, 2000) / kCutsPerDisk;
  for (int seed = 0; seed < disks; ++seed) {
    ASSERT_EQ(ThroughPowerCuts(static_cast<uint32_t>(seed), kCutsPerDisk, false), "");
  }
}

// The test above can fail: on a disk that does not keep what it has synced, it does.
TEST(PowerCut, ADiskThatLiesIsFoundOut) {
  const FrequentCheckpoints frequent;
  int found_out = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    if (!ThroughPowerCuts(seed, kCutsPerDisk, true).empty()) ++found_out;
  }
  EXPECT_GT(found_out, 15);
}

class DiskError : public ::testing::TestWithParam<DiskFault> {};
std::string FaultName(const ::testing::TestParamInfo<DiskFault>& tested) {
  if (tested.param == DiskFault::kIoError) return "OneError";
  if (tested.param == DiskFault::kIoErrors) return "ErrorsFromThen";
  return tested.param == DiskFault::kFull ? "Full" : "OneReadError";
}
INSTANTIATE_TEST_SUITE_P(Disk, DiskError,
                         ::testing::Values(DiskFault::kIoError, DiskFault::kIoErrors,
                                           DiskFault::kReadError, DiskFault::kFull),
                         FaultName);

// What a disk's error may look like to who calls the store.
testing::AssertionResult IsClean(DiskFault fault, const absl::Status& status) {
  const std::string reason = Reason(status);
  const bool clean =
      fault == DiskFault::kFull
          ? reason == "STORE_FULL" || reason == "STORE_UNAVAILABLE"
          : reason == "STORE_IO_ERROR" || reason == "STORE_FAILED" || reason == "STORE_UNAVAILABLE";
  return (clean ? testing::AssertionSuccess() : testing::AssertionFailure()) << status.ToString();
}

// An error in every operation of a store's life in turn.
TEST_P(DiskError, IsCleanAndLosesNothing) {
  const FrequentCheckpoints frequent;
  const DiskFault fault = GetParam();
  const int stride = Rounds(5, 1);
  int failed_writes = 0, recovered = 0;
  for (int operation = 1;; operation += stride) {
    SCOPED_TRACE(operation);
    FailingStore life(7);
    life.disk.Arm(fault, operation);
    for (int session = 0; session < 3; ++session) {
      absl::Status status = life.Open();
      EXPECT_TRUE(status.ok() || IsClean(fault, status));
      for (int i = 0; i < 8 && status.ok(); ++i) {
        status = life.Live(1);
        if (status.ok()) status = Observe(*life.store, life.tenants).status();
      }
      if (!status.ok()) {
        EXPECT_TRUE(IsClean(fault, status));
        break;
      }
      life.store.reset();
    }
    const bool struck = life.disk.struck();
    const bool was_open = life.store != nullptr;
    life.disk.Disarm();
    if (was_open) {
      ++failed_writes;
      const absl::Status again = life.store->Put(life.tenants[0], MakePut("again", 1)).status();
      if (fault == DiskFault::kFull || fault == DiskFault::kReadError) {
        // Room is there again, or the read works again: so does the store.
        EXPECT_TRUE(again.ok() || Reason(again) == "STORE_FAILED") << again;
        if (again.ok()) ++recovered;
      } else {
        EXPECT_EQ(Reason(again), "STORE_FAILED") << again;
        EXPECT_EQ(Reason(life.store->Health()), "STORE_FAILED");
      }
      if (again.ok()) {
        ASSERT_TRUE(life.store->Delete(life.tenants[0], "again", {}).ok());
      }
      life.store.reset();
    }
    const absl::Status opened = life.Open();
    ASSERT_TRUE(opened.ok()) << opened;
    ASSERT_EQ(life.Check(), "");
    EXPECT_TRUE(life.Live(5).ok());
    if (!struck) break;
  }
  EXPECT_GT(failed_writes, 10);
  if (fault == DiskFault::kFull) {
    EXPECT_EQ(recovered, failed_writes);
  }
}

// A process that dies after a failed sync leaves, in the page cache, a log that is not on the disk.
// The next one sees it and may not build on it.
TEST(DiskErrors, AFailedSyncThenAKillThenAPowerCutLoseNothingAcknowledged) {
  int seen = 0;
  for (int operation = 1; operation < Rounds(60, 400); ++operation) {
    FailingStore life(static_cast<uint32_t>(operation));
    ASSERT_TRUE(life.Open().ok());
    // With a reader beside it, closing the writer is no checkpoint.
    ASSERT_TRUE(Observe(*life.store, life.tenants).ok());
    life.disk.Arm(DiskFault::kIoError, operation);
    const absl::Status status = life.Live(50);
    if (status.ok()) continue;
    ++seen;
    life.disk.Arm(DiskFault::kKill, 1);
    life.store.reset();
    life.disk.Restart();
    ASSERT_TRUE(life.Open().ok());
    ASSERT_EQ(life.Check(), "") << operation;
    ASSERT_TRUE(life.Live(2).ok());
    life.disk.Arm(DiskFault::kPowerCut, 1);
    ASSERT_FALSE(life.Live(50).ok());
    life.store.reset();
    life.disk.Restart();
    ASSERT_TRUE(life.Open().ok());
    ASSERT_EQ(life.Check(), "") << operation;
  }
  EXPECT_GT(seen, 20);
}

}  // namespace
}  // namespace eta
