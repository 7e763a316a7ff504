// Failpoints are named places in the product where a test makes something fail, wait or end. They
// are compiled in only if ETA_FAILPOINTS is defined (the CMake option of that name; a release never
// sets it). Without it ETA_FAILPOINT is `false` and nothing of this file is linked. A failpoint
// that is compiled in and not armed costs the load of one word.
//
//   if (ETA_FAILPOINT(kStoreRead)) return StoreBusy();
//
// This is our own code since libfiu (fiu-local.h) has names that are unchecked strings, takes a
// lock at every check even when nothing fails, and has no action but "fail".
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace eta {

// The catalogue of failpoints: X(identifier, name). A name that is not listed does not compile.
// failpoint_test fails for a name that no test struck in each of the files that use it.
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
  X(kGenerateCompile, "generate.compile")      \
  X(kGenerateTokenize, "generate.tokenize")    \
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
  kFail,      // the error that is written beside the failpoint
  kBadAlloc,  // throws std::bad_alloc
  kDelay,     // waits for `delay`, then goes on
  kPause,     // waits until the rule is withdrawn, then goes on
  kKill,      // SIGKILL to this process
};

// What a failpoint does from now on: it lets `after` passes go, acts on the next `times`, and lets
// the rest go.
struct FailRule {
  FailAction action = FailAction::kFail;
  int64_t after = 0;
  int64_t times = INT64_MAX;
  std::chrono::milliseconds delay{0};
};

// The functions below may be called from any thread. They exist only if failpoints are compiled in.
void ArmFailpoint(Failpoint point, const FailRule& rule);
// Withdraws all rules; this also ends the waits of kPause.
void DisarmFailpoints();
// How often the failpoint has acted since the process began.
int64_t FailpointStrikes(Failpoint point);
// From now on, writes the name of each failpoint that acts to the file at `path`, before it acts.
// The line is "NAME SOURCE", the source without its folder, once for each source file. An empty
// path: to no file.
void NameFailpointsIn(const std::string& path);
// Replaces all rules by those of a text: NAME=ACTION[*TIMES][@AFTER], separated by spaces or line
// breaks. ACTION is fail, bad_alloc, kill, pause or delay:MILLISECONDS. Returns false, and changes
// nothing, if the text is malformed.
bool ArmFailpoints(std::string_view rules);

inline std::atomic<uint64_t> armed_failpoints = 0;  // one bit per failpoint
// Acts as the failpoint is armed. Returns true if the code behind it, in `source`, must fail.
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
