// Failpoints: named places in the product where a test makes something fail, wait or end. They are
// compiled in only where ETA_FAILPOINTS is defined (the CMake option of that name, never set for
// what is shipped); without it ETA_FAILPOINT is `false` and nothing of this is linked. One that is
// compiled in and not armed costs the load of one word.
//
//   if (ETA_FAILPOINT(kStoreRead)) return StoreBusy();
//
// Own code and not libfiu (fiu-local.h), whose names are strings that nothing checks, whose check
// takes a lock even where nothing fails, and which has no actions but "fail".
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace eta {

// The catalogue: a name that is not here does not compile, and failpoint_test fails for one that no
// test struck in each of the files that have it. X(identifier, name)
#define ETA_FAILPOINT_CATALOGUE(X)             \
  X(kDeviceAllocate, "device.allocate")        \
  X(kFileOpen, "file.open")                    \
  X(kFileRead, "file.read")                    \
  X(kEngineSubmit, "engine.submit")            \
  X(kEngineBlock, "engine.block")              \
  X(kEngineStep, "engine.step")                \
  X(kEngineStepMemory, "engine.step_memory")   \
  X(kEngineStepDevice, "engine.step_device")   \
  X(kEngineSample, "engine.sample")            \
  X(kEngineDeliver, "engine.deliver")          \
  X(kEnginePassCells, "engine.pass_cells")     \
  X(kStoreOpen, "store.open")                  \
  X(kStoreMigrate, "store.migrate")            \
  X(kStoreRead, "store.read")                  \
  X(kStorePut, "store.put")                    \
  X(kStoreAlias, "store.alias")                \
  X(kStoreDelete, "store.delete")              \
  X(kStoreBeforeCommit, "store.before_commit") \
  X(kStoreAfterCommit, "store.after_commit")   \
  X(kStoreNotify, "store.notify")              \
  X(kStorePoll, "store.poll")                  \
  X(kCalibrateCollect, "calibrate.collect")    \
  X(kCalibrateSolve, "calibrate.solve")        \
  X(kCalibrateSearch, "calibrate.search")      \
  X(kCalibrateVerify, "calibrate.verify")      \
  X(kCacheLoad, "cache.load")                  \
  X(kCacheRefresh, "cache.refresh")            \
  X(kServerThreads, "server.threads")          \
  X(kGenerateDelta, "generate.delta")          \
  X(kProfileCall, "profile.call")              \
  X(kWorkerPost, "worker.post")                \
  X(kLogWrite, "log.write")                    \
  X(kMetricsPage, "metrics.page")              \
  X(kFileReload, "file.reload")                \
  X(kDrain, "drain")

enum class Failpoint : uint8_t {
#define ETA_FAILPOINT_IDENTIFIER(identifier, name) identifier,
  ETA_FAILPOINT_CATALOGUE(ETA_FAILPOINT_IDENTIFIER)
#undef ETA_FAILPOINT_IDENTIFIER
};

inline constexpr std::string_view kFailpointNames[] = {
#define ETA_FAILPOINT_NAME(identifier, name) name,
    ETA_FAILPOINT_CATALOGUE(ETA_FAILPOINT_NAME)
#undef ETA_FAILPOINT_NAME
};
inline constexpr size_t kNumFailpoints = std::size(kFailpointNames);
static_assert(kNumFailpoints <= 64, "one bit each");

enum class FailAction : uint8_t {
  kFail,      // the error that stands beside the failpoint
  kBadAlloc,  // throws std::bad_alloc
  kDelay,     // waits for `delay`, then goes on
  kPause,     // waits until the rule is taken back, then goes on
  kKill,      // SIGKILL to this process
};

// What a failpoint does from now on: lets `after` passes go, acts on `times` of them, then on none.
struct FailRule {
  FailAction action = FailAction::kFail;
  int64_t after = 0;
  int64_t times = INT64_MAX;
  std::chrono::milliseconds delay{0};
};

// All of these from any thread; they exist only where failpoints are compiled in.
void ArmFailpoint(Failpoint point, const FailRule& rule);
// Ends the waits of kPause too.
void DisarmFailpoints();
// How often it acted, ever.
int64_t FailpointStrikes(Failpoint point);
// Each failpoint that acts is named in this file from now on, before it acts: once for each source
// file that it is in, in a line "NAME SOURCE", without the source's folder. Empty: in none.
void NameFailpointsIn(const std::string& path);
// Instead of the rules there are, those of a text: NAME=ACTION[*TIMES][@AFTER], separated by spaces
// or line breaks; ACTION is fail, bad_alloc, kill, pause or delay:MILLISECONDS. False, and nothing
// changed: it is no such text.
bool ArmFailpoints(std::string_view rules);

inline std::atomic<uint64_t> armed_failpoints = 0;  // a bit each
// True: the code behind it, in `source`, is to fail. Acts as armed.
bool StrikeFailpoint(Failpoint point, std::string_view source);

inline bool PassFailpoint(Failpoint point, const char* source = __builtin_FILE()) {
  const uint64_t armed = armed_failpoints.load(std::memory_order_relaxed);
  return __builtin_expect((armed >> static_cast<int>(point)) & 1, 0) != 0 &&
         StrikeFailpoint(point, source);
}

}  // namespace eta

#ifdef ETA_FAILPOINTS
#define ETA_FAILPOINT(point) ::eta::PassFailpoint(::eta::Failpoint::point)
#else
#define ETA_FAILPOINT(point) false
#endif
