// Shared by eta-bench's subcommands. Every subcommand checks its results before it measures,
// reports how long its preparation took, and returns one JSON object.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/workers.h"
#include "nlohmann/json.hpp"

namespace eta::bench {

using Json = nlohmann::ordered_json;

// The flags of every subcommand that runs a backend.
struct DeviceFlags {
  std::string backend = "cpu";
  int threads = 0;  // cpu; 0: one per core
  bool amx = true;  // cpu
  int device = 0;   // cuda
  int samples = 5;  // timed steps, after three warm-up steps
  uint64_t seed = 1;
};

// The shape of attention as flags.
struct ShapeFlags {
  int32_t heads = 32;
  int32_t kv_heads = 4;
  int32_t head_dim = 64;
  int32_t block = 64;
  std::string kv_dtype = "float16";
  std::string index = "moment";
  std::string index_dtype = "float16";  // of a moment index

  KvGeometry geometry() const;
  void Check() const;  // fails if the heads cannot be grouped

  // The bytes that attention reads of `tokens` tokens, and that screening reads of the records of
  // `full_blocks` blocks.
  double KvBytes(double tokens) const;
  double RecordBytes(double full_blocks) const;
};

void AddDeviceFlags(CLI::App& command, DeviceFlags& flags);
void AddShapeFlags(CLI::App& command, ShapeFlags& flags);
std::unique_ptr<Backend> OpenBackend(const DeviceFlags& flags);
int ThreadsOf(const DeviceFlags& flags);  // of backend cpu

// The chosen subcommand. It runs, and then its report is printed as JSON or as a table.
struct Command {
  std::function<Json()> run;
  std::function<void(const Json&)> print;
};
void AddAppendCommand(CLI::App& app, Command& chosen);
void AddAttentionCommand(CLI::App& app, Command& chosen);
void AddBackgroundCommand(CLI::App& app, Command& chosen);
void AddDecodeCommand(CLI::App& app, Command& chosen);
void AddMasksCommand(CLI::App& app, Command& chosen);
void AddMatmulCommand(CLI::App& app, Command& chosen);
void AddPrefillCommand(CLI::App& app, Command& chosen);
void AddProfilesCommand(CLI::App& app, Command& chosen);
void AddReplayCommand(CLI::App& app, Command& chosen);
void AddTextCommand(CLI::App& app, Command& chosen);
void AddTokenizerCommand(CLI::App& app, Command& chosen);
#if ETA_BENCH_TRAINING
void AddTrainCommand(CLI::App& app, Command& chosen);
#if ETA_BENCH_CUDA
void AddTrainAttentionCommand(CLI::App& app, Command& chosen);
#endif
#endif
#if ETA_BENCH_SERVICE
void AddObserveCommand(CLI::App& app, Command& chosen);
void AddHealthCommand(CLI::App& app, Command& chosen);
void AddServeCommand(CLI::App& app, Command& chosen);
void AddOverloadCommands(CLI::App& app, Command& chosen);
#endif

// Ends the program with 1, because a result is wrong or a step failed.
[[noreturn]] void Fail(const std::string& why);

template <typename T>
T Require(absl::StatusOr<T> value) {
  if (!value.ok()) Fail(std::string(value.status().message()));
  return *std::move(value);
}
void RequireOk(const absl::Status& status);

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Seconds of one step. `median` and `best` are measured by the device if it can; otherwise they
// equal the wall clock's times, which run from before Plan() to the end of Finish().
struct StepTiming {
  double median = 0.0;
  double best = 0.0;
  double wall = 0.0;  // median
  bool on_device = false;

  StepTiming DividedBy(double count) const {
    return {median / count, best / count, wall / count, on_device};
  }
};

// `enqueue` plans a step and calls its ops; Finish() follows. A backend that replays programs has
// seen this program when the clock starts.
StepTiming TimeSteps(Backend& backend, int samples, const std::function<void()>& enqueue);
// One step, without warm-up.
StepTiming TimeStep(Backend& backend, const std::function<void()>& enqueue);

double Median(std::vector<double> values);
// The quantile `share` of `values`, by rank; 0 without values.
double Quantile(std::vector<double> values, double share);

// The contents of a file that must have some.
std::string ReadText(const std::string& path);

// Bytes/s at which the backend's device reads its memory, measured now. It takes up to 4 GB of that
// memory during the measurement.
double MeasureReadBandwidth(const DeviceFlags& flags);
// FLOP/s of float32 multiply-adds in registers, measured now; 0 for backends other than cpu.
double MeasurePeakFlops(const DeviceFlags& flags);

// The fields at the beginning of every report.
Json BeginReport(const char* bench, const DeviceFlags& flags, const Backend& backend,
                 double bytes_per_second);

// A column shows row[key]. Numbers are multiplied by `scale` and shown with `precision` digits.
struct Column {
  const char* title;
  const char* key;
  int precision = 0;
  double scale = 1.0;
};
void PrintTable(const Json& rows, const std::vector<Column>& columns);

}  // namespace eta::bench
