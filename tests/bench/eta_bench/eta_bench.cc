// eta-bench measures kernels, whole models, training, serving and stored profiles, next to the
// limits of the device where it can.
//
//   eta-bench attention --backend=cuda --batch=32 --context=131072 --json
//   eta-bench append --backend=cuda --batch=64 --index=outlier
//   eta-bench decode --backend=cuda --batch=64 --context=65536
//   eta-bench decode --backend=cuda --batch=1,16 --context=32768 --density=1,0.3 --window=512
//       --layers=26 --width=1152 --ffn=6912 --heads=4 --kv_heads=1 --head_dim=256 --vocab=262144
//                                                                (Gemma 3 1B; of 4B: --window=1024
//       --layers=34 --width=2560 --ffn=10240 --heads=8 --kv_heads=4)
//   eta-bench prefill --backend=cuda --tokens=4096,8192,32768
//   eta-bench text --model=models/eta-27m --text=FILE --context=1024,4096
//   eta-bench replay --model=models/eta-27m --streams=1,8
//   eta-bench masks --streams=64 --bound=32 --device_microseconds=2500      (builds with formats)
//   eta-bench matmul --only=decode
//   eta-bench tokenizer --tokenizer=FILE --text=FILE
//   eta-bench profiles --profile_store=sqlite:PATH
//   eta-bench train --sequences=16 --length=4096                 (builds with training)
//   eta-bench train-attention --lengths=4096,16384               (likewise, with CUDA)
//   eta-bench background --model=models/eta-27m --streams=16
//   eta-bench observe                                            (builds with the service)
//   eta-bench health --health_address=localhost:8473             (likewise)
//   eta-bench serve --address=localhost:8471 --streams=16        (builds with the service)
//   eta-bench overload --address=localhost:8471                  (likewise)
//   eta-bench fairness --address=localhost:8471 --tenant_header=eta-tenant        (likewise)
//
// If a result is wrong, it exits with 1 and times nothing.
#include "tests/bench/eta_bench/eta_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>

#include "engine/model/kv_cache.h"
#include "kernels/backends/make_backend.h"
#include "kernels/system/usable_cpus.h"
#include "tests/bench/machine_limits.h"
#if ETA_BENCH_CUDA
#include "tests/bench/read_bandwidth.h"
#endif

namespace eta::bench {

KvGeometry ShapeFlags::geometry() const {
  return {.num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .block_size = block,
          .sub_block = block >= 16 && block % 4 == 0 ? 4 : 0,
          .dtype = *ParseDType(kv_dtype),
          .index = index == "outlier" ? IndexKind::kOutlier : IndexKind::kMoment,
          .index_dtype = index == "outlier" ? DType::kInt8 : *ParseDType(index_dtype)};
}

double ShapeFlags::KvBytes(double tokens) const {
  return tokens * kv_heads * static_cast<double>(KvTokenBytes(geometry()));
}

double ShapeFlags::RecordBytes(double full_blocks) const {
  // Three 8-bit vectors and two steps, or what the cache's manager counts.
  const double outlier_bytes = 3.0 * head_dim + 4.0;
  return full_blocks * kv_heads *
         (index == "outlier" ? outlier_bytes : static_cast<double>(IndexRecordBytes(geometry())));
}

void ShapeFlags::Check() const {
  if (heads % kv_heads != 0) Fail("--heads: not a multiple of --kv_heads");
  if (heads / kv_heads > 32) Fail("--heads: more than 32 for each of --kv_heads");
}

void AddDeviceFlags(CLI::App& command, DeviceFlags& flags) {
  command.add_option("--backend", flags.backend)
      ->check(CLI::IsMember(BackendNames()))
      ->capture_default_str();
  command.add_option("--threads", flags.threads, "cpu: 0 takes one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_flag("--amx,!--no-amx", flags.amx, "cpu: prompts use AMX where the machine has it");
  command.add_option("--device", flags.device, "cuda: index of the device")
      ->check(CLI::Range(0, 63))
      ->capture_default_str();
  command.add_option("--samples", flags.samples, "Timed steps of each kind; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--seed", flags.seed)->capture_default_str();
}

void AddShapeFlags(CLI::App& command, ShapeFlags& flags) {
  command.add_option("--heads", flags.heads, "Query heads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--kv_heads", flags.kv_heads)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--head_dim", flags.head_dim)
      ->check(CLI::Range(2, 256))
      ->capture_default_str();
  command.add_option("--block", flags.block, "Tokens per block")
      ->check(CLI::Range(4, 128))
      ->capture_default_str();
  command.add_option("--kv_dtype", flags.kv_dtype)
      ->check(CLI::IsMember({"float32", "float16", "bfloat16", "float8_e4m3"}))
      ->capture_default_str();
  command.add_option("--index", flags.index, "What a block's record holds")
      ->check(CLI::IsMember({"moment", "outlier"}))
      ->capture_default_str();
  command.add_option("--index_dtype", flags.index_dtype, "Of a moment index")
      ->check(CLI::IsMember({"float16", "int8"}))
      ->capture_default_str();
}

std::unique_ptr<Backend> OpenBackend(const DeviceFlags& flags) {
  BackendOptions options;
  options.name = flags.backend;
  options.num_threads = flags.threads;
  options.amx = flags.amx;
  options.device = flags.device;
  return Require(MakeBackend(options));
}

void Fail(const std::string& why) {
  std::cerr << "eta-bench: " << why << "\n";
  std::exit(1);
}

void RequireOk(const absl::Status& status) {
  if (!status.ok()) Fail(std::string(status.message()));
}

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const auto rank = std::ceil(share * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(1.0, rank)) - 1];
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string contents{std::istreambuf_iterator<char>(file), {}};
  if (contents.empty()) Fail(path + ": empty or not readable");
  return contents;
}

StepTiming TimeStep(Backend& backend, const std::function<void()>& enqueue) {
  const Stopwatch watch;
  enqueue();
  RequireOk(backend.Finish());
  const double wall = watch.seconds();
  const std::optional<double> device = backend.last_step_seconds();
  const double seconds = device.value_or(wall);
  return {seconds, seconds, wall, device.has_value()};
}

StepTiming TimeSteps(Backend& backend, int samples, const std::function<void()>& enqueue) {
  constexpr int kWarmUp = 3;
  std::vector<double> seconds;
  std::vector<double> wall;
  bool on_device = false;
  for (int i = 0; i < kWarmUp + samples; ++i) {
    const StepTiming step = TimeStep(backend, enqueue);
    if (i < kWarmUp) continue;
    seconds.push_back(step.median);
    wall.push_back(step.wall);
    on_device = step.on_device;
  }
  return {Median(seconds), *std::min_element(seconds.begin(), seconds.end()), Median(wall),
          on_device};
}

int ThreadsOf(const DeviceFlags& flags) {
  return flags.threads > 0 ? flags.threads : ReadUsableCpus().threads();
}

double MeasureReadBandwidth(const DeviceFlags& flags) {
#if ETA_BENCH_CUDA
  if (flags.backend == "cuda") {
    return Require(DeviceReadBandwidth(flags.device, size_t{4} << 30));
  }
#endif
  cpu::Workers workers(ThreadsOf(flags));
  return ReadBandwidth(workers, ThreadsOf(flags), size_t{512} << 20);
}

double MeasurePeakFlops(const DeviceFlags& flags) {
  if (flags.backend != "cpu") return 0.0;
  cpu::Workers workers(ThreadsOf(flags));
  return PeakFlops(workers, ThreadsOf(flags));
}

Json BeginReport(const char* bench, const DeviceFlags& flags, const Backend& backend,
                 double bytes_per_second) {
  return {{"bench", bench},
          {"backend", flags.backend},
          {"description", backend.description()},
          {"seed", flags.seed},
          {"samples", flags.samples},
          {"read_tb_per_s", bytes_per_second * 1e-12}};
}

namespace {

std::string Cell(const Json& row, const Column& column) {
  const auto it = row.find(column.key);
  if (it == row.end() || it->is_null()) return "-";
  if (it->is_string()) return it->get<std::string>();
  if (it->is_boolean()) return it->get<bool>() ? "yes" : "no";
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", column.precision, it->get<double>() * column.scale);
  return text;
}

}  // namespace

void PrintTable(const Json& rows, const std::vector<Column>& columns) {
  std::vector<std::vector<std::string>> cells(1);
  for (const Column& column : columns) cells[0].push_back(column.title);
  for (const Json& row : rows) {
    std::vector<std::string>& line = cells.emplace_back();
    for (const Column& column : columns) line.push_back(Cell(row, column));
  }
  std::vector<size_t> widths(columns.size(), 0);
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) {
      std::printf("%s%*s", i == 0 ? "" : "  ", static_cast<int>(widths[i]), line[i].c_str());
    }
    std::printf("\n");
  }
}

namespace {

int Main(int argc, char** argv) {
  CLI::App app("Speed of the kernels, models, stores and servers of this build");
  app.require_subcommand(1);
  bool json = false;
  Command chosen;
  AddAppendCommand(app, chosen);
  AddAttentionCommand(app, chosen);
  AddBackgroundCommand(app, chosen);
  AddDecodeCommand(app, chosen);
  AddMatmulCommand(app, chosen);
  AddPrefillCommand(app, chosen);
  AddProfilesCommand(app, chosen);
  AddReplayCommand(app, chosen);
  AddMasksCommand(app, chosen);
  AddTextCommand(app, chosen);
  AddTokenizerCommand(app, chosen);
#if ETA_BENCH_TRAINING
  AddTrainCommand(app, chosen);
#if ETA_BENCH_CUDA
  AddTrainAttentionCommand(app, chosen);
#endif
#endif
#if ETA_BENCH_SERVICE
  AddObserveCommand(app, chosen);
  AddHealthCommand(app, chosen);
  AddServeCommand(app, chosen);
  AddOverloadCommands(app, chosen);
#endif
  for (CLI::App* command : app.get_subcommands({})) {
    command->add_flag("--json", json, "One JSON object instead of a table");
  }
  CLI11_PARSE(app, argc, argv);
  const Json report = chosen.run();
  if (json) {
    std::cout << report.dump(2) << "\n";
  } else {
    chosen.print(report);
  }
  return 0;
}

}  // namespace
}  // namespace eta::bench

int main(int argc, char** argv) {
  return eta::bench::Main(argc, argv);
}
