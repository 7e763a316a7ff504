// eta-bench decode: a whole model's decode step. Weights and cache are random, so densities are
// forced. One constant replaces all thresholds; bisection finds it for the union density that the
// steps themselves count. Layers with a window select nothing: they read what they read, and the
// densities are of full layers. Sequences stand at different places of their blocks: of as many as
// a block has tokens one fills its block, and writes a record, since a stream does so once in so
// many steps.

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "kernels/system/usable_cpus.h"
#include "tests/bench/eta_bench/data.h"
#include "tests/bench/eta_bench/decode_case.h"
#include "tests/bench/eta_bench/eta_bench.h"
#include "tests/bench/eta_bench/model.h"

namespace eta::bench {
namespace {

struct Options {
  DeviceFlags device;
  ShapeFlags shape;
  int32_t layers = 22;
  int32_t width = 2048;
  int32_t ffn = 8192;
  int32_t vocab = 32768;
  std::vector<int32_t> batch = {64};
  int32_t rows_per_sequence = 1;
  int32_t context = 65536;
  std::vector<double> density = {1.0, 0.512, 0.355, 0.16};
  int32_t distinct_tokens = 16384;
  int32_t profiles = 0;  // resident ones, drawn per row and step; 0: not measured
  std::string weights = "native";
  int32_t experts = 0;
  int32_t experts_per_token = 8;
  int32_t expert_ffn = 768;
  int32_t window = 0;
  int32_t window_period = 6;

  // float8 is how the model is stored.
  WeightFormat format() const { return ParseWeightFormat(weights).value_or(WeightFormat::kNative); }
  bool float8() const { return weights == "float8"; }
};

ModelShape Shape(const Options& options) {
  return {options.layers,
          options.width,
          options.ffn,
          options.vocab,
          options.shape.heads,
          options.shape.kv_heads,
          options.shape.head_dim,
          options.shape.block,
          options.window,
          options.window_period,
          options.context,
          options.experts,
          options.experts_per_token,
          options.expert_ffn};
}

// `blocks_each`: how many of the table are for a sequence. It takes as many as it has tokens for.
std::vector<SequencePlace> Places(std::span<const int32_t> table, int32_t blocks_each,
                                  int32_t block, std::span<const int32_t> num_tokens) {
  std::vector<SequencePlace> places;
  for (const int32_t tokens : num_tokens) {
    const size_t from = places.size() * static_cast<size_t>(blocks_each);
    places.push_back({static_cast<int32_t>(places.size()), tokens,
                      table.subspan(from, static_cast<size_t>((tokens + block - 1) / block))});
  }
  return places;
}

// The tokens of each sequence. None of few fills its block at a --context of whole blocks, unless
// it has several rows.
std::vector<int32_t> Lengths(const Options& options, int32_t rows) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < rows; ++i) {
    lengths.push_back(options.context - 1 - i % options.shape.block);
  }
  return lengths;
}

// How the last steps of two differ, in words; empty if they agree as far as rounding lets them.
// `exact`: both compute in float32. `most`: of logits.
std::string Differences(DecodeCase& ours, DecodeCase& theirs, bool exact, double most) {
  if (std::abs(ours.UnionDensity() - theirs.UnionDensity()) > (exact ? 0.01 : 0.02) ||
      std::abs(ours.HeadDensity() - theirs.HeadDensity()) > (exact ? 0.01 : 0.02)) {
    return absl::StrCat("union density ", ours.UnionDensity(), ", the reference's is ",
                        theirs.UnionDensity());
  }
  for (int32_t row = 0; row < ours.num_rows(); ++row) {
    const std::vector<float> got = ours.Logits(row);
    const std::vector<float> want = theirs.Logits(row);
    double error = 0.0;
    double square = 0.0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
      square += std::pow(static_cast<double>(want[i]), 2);
    }
    const double relative = std::sqrt(error / square);
    if (!(relative < most)) {
      return absl::StrCat("logits differ from the reference's by ", 100.0 * relative, " %");
    }
  }
  return {};
}

// Compares one layer of the same widths over a short cache with the reference, and one of each kind
// where layers differ.
void Check(Backend& backend, cpu::Workers& workers, const Options& options) {
  DeviceFlags flags;
  flags.backend = "reference";
  const std::unique_ptr<Backend> reference = OpenBackend(flags);
  ModelShape shape = Shape(options);
  const int32_t longest = std::min(options.context, 1024);
  shape.layers = 1;
  if (shape.window > 0) {
    shape.layers = shape.window_period = 2;
    shape.window = std::min(shape.window, longest / 4 + 1);
  }
  shape.vocab = std::min(shape.vocab, 32768);
  // Rounding may change which experts a row chooses, so it chooses all.
  shape.experts = std::min(shape.experts, 8);
  shape.experts_per_token = std::max(shape.experts, 1);
  // The reference packs weights with one thread.
  if (options.format() != WeightFormat::kNative) shape.ffn = std::min(shape.ffn, 2048);
  const RandomModel source(shape, options.device.seed, workers, options.float8());
  const KvContent content(options.shape.geometry(), longest / options.shape.block,
                          options.device.seed, workers);
  const int32_t blocks_each = (longest + options.shape.block - 1) / options.shape.block;
  const std::vector<int32_t> table = DealBlocks(2, blocks_each, options.device.seed);
  const int32_t lengths[] = {longest - options.shape.block / 3, longest - 1};
  const std::vector<SequencePlace> places =
      Places(table, blocks_each, options.shape.block, lengths);
  const int32_t rows_each = options.rows_per_sequence;
  DecodeCase ours(backend, source, content, places, 2 * blocks_each, options.format(), rows_each);
  DecodeCase theirs(*reference, source, content, places, 2 * blocks_each, options.format(),
                    rows_each);
  // 16-bit elements between the layers move logits. They also move a few blocks whose bounds are
  // next to their thresholds, and of few heads with norms behind them a block moves logits a lot.
  // So thresholds nearby are tried too. The reference rounds the activations of packed weights to 8
  // bits.
  const bool exact = backend.activation_dtype() == DType::kFloat32;
  const double most = exact ? 1e-3 : options.format() == WeightFormat::kNative ? 2e-2 : 5e-2;
  for (const bool full : {true, false}) {
    const int tries = full || (shape.window == 0 && shape.experts == 0) ? 1 : 24;
    std::string differences;
    for (int i = 0; i < tries; ++i) {
      for (DecodeCase* one : {&ours, &theirs}) {
        one->SetAdmitAll(full);
        one->SetThreshold(1.5f + 0.03f * static_cast<float>(i));
        one->RunOnce();
      }
      differences = Differences(ours, theirs, exact, most);
      if (differences.empty()) break;
    }
    if (!differences.empty()) Fail(absl::StrCat(full ? "full: " : "sparse: ", differences));
  }
}

Json Measure(Backend& backend, DecodeCase& decode, const Options& options, int32_t batch,
             double density, double dense_bytes, double bytes_per_second) {
  const bool full = density >= 1.0;
  decode.SetAdmitAll(full);
  Json threshold = nullptr;
  if (!full) threshold = decode.FindThreshold(density);
  const StepTiming step = TimeSteps(backend, options.device.samples, [&] { decode.Enqueue(); });
  if (!decode.finite()) Fail("logits are not finite");
  const auto experts_read = static_cast<double>(decode.NumExpertsRead());
  const double weight_bytes = dense_bytes + experts_read * decode.ExpertBytes();
  const double kv_bytes = options.shape.KvBytes(decode.num_tokens());
  const double window_bytes = options.shape.KvBytes(decode.tokens_in_windows());
  const double record_bytes = options.shape.RecordBytes(decode.num_full_blocks());
  const double bytes =
      weight_bytes + window_bytes + decode.UnionDensity() * kv_bytes + (full ? 0.0 : record_bytes);
  const double limit = bytes / bytes_per_second;
  const int32_t num_rows = batch * options.rows_per_sequence;
  Json row = {{"batch", batch},
              {"kind", full ? "full" : "sparse"},
              {"density", density},
              {"union_density", decode.UnionDensity()},
              {"head_density", decode.HeadDensity()},
              {"threshold", threshold},
              {"experts_read_per_layer", experts_read / options.layers},
              {"milliseconds", step.median * 1e3},
              {"best_milliseconds", step.best * 1e3},
              {"wall_milliseconds", step.wall * 1e3},
              {"device_time", step.on_device},
              {"host_overhead_milliseconds", nullptr},
              {"prepared_wall_milliseconds", nullptr},
              {"prepared_host_overhead_milliseconds", nullptr},
              {"kv_bytes", kv_bytes},
              {"window_bytes", window_bytes},
              {"bytes", bytes},
              {"tb_per_s", bytes / step.median * 1e-12},
              {"limit_milliseconds", limit * 1e3},
              {"times_limit", step.median / limit},
              {"tokens_per_s", num_rows / step.wall},
              {"speedup_over_full", nullptr}};
  if (step.on_device) row["host_overhead_milliseconds"] = (step.wall - step.median) * 1e3;
  if (backend.defers()) {
    const auto prepared = decode.TimePrepared(options.device.samples);
    row["prepared_wall_milliseconds"] = prepared.wall * 1e3;
    row["prepared_host_overhead_milliseconds"] = prepared.host * 1e3;
    row["tokens_per_s"] = num_rows / prepared.wall;
  }
  if (!full && options.profiles > 0) {
    decode.SetProfiles(options.profiles);
    const StepTiming swapped =
        TimeSteps(backend, options.device.samples, [&] { decode.Enqueue(); });
    if (std::abs(decode.UnionDensity() - row["union_density"].get<double>()) > 0.002) {
      Fail("union density differs between one profile and many");
    }
    decode.SetProfiles(0);
    row["profiles_milliseconds"] = swapped.median * 1e3;
    row["profiles_wall_milliseconds"] = swapped.wall * 1e3;
  }
  return row;
}

Json Run(const Options& options) {
  options.shape.Check();
  if (options.context < 4 * options.shape.block) Fail("--context: fewer than four blocks");
  if (options.experts > 0 && options.experts_per_token > options.experts) {
    Fail("--experts_per_token: more than --experts");
  }
  if (options.experts > 0 && options.window > 0) Fail("--window: not together with --experts");
  if (options.window > 0 && options.layers < options.window_period) {
    Fail("--layers: fewer than --window_period, so that no layer is full");
  }
  const double bandwidth = MeasureReadBandwidth(options.device);
  const std::unique_ptr<Backend> backend = OpenBackend(options.device);
  cpu::Workers workers(ReadUsableCpus().threads());
  Json report = BeginReport("decode", options.device, *backend, bandwidth);
  const Stopwatch check;
  Check(*backend, workers, options);
  report["check_seconds"] = check.seconds();

  const Stopwatch setup;
  const RandomModel source(Shape(options), options.device.seed, workers, options.float8());
  const KvGeometry geometry = options.shape.geometry();
  const KvContent content(
      geometry,
      std::max(std::min(options.distinct_tokens, options.context) / geometry.block_size, 1),
      options.device.seed, workers);
  const int32_t blocks_each = (options.context + geometry.block_size - 1) / geometry.block_size;
  const int32_t most = *std::ranges::max_element(options.batch);
  const std::vector<int32_t> table = DealBlocks(most, blocks_each, options.device.seed);
  const std::vector<SequencePlace> places =
      Places(table, blocks_each, geometry.block_size, Lengths(options, most));
  DecodeCase decode(*backend, source, content, places, most * blocks_each, options.format(),
                    options.rows_per_sequence);
  const double weight_bytes = decode.WeightBytes(options.format());
  report["setup_seconds"] = setup.seconds();
  report["model"] = {{"layers", options.layers},
                     {"width", options.width},
                     {"ffn", options.ffn},
                     {"vocab", options.vocab},
                     {"heads", options.shape.heads},
                     {"kv_heads", options.shape.kv_heads},
                     {"head_dim", options.shape.head_dim},
                     {"block", options.shape.block},
                     {"kv_dtype", options.shape.kv_dtype},
                     {"index_dtype", options.shape.index_dtype},
                     {"weights", options.weights},
                     {"weight_bytes_per_step", weight_bytes},
                     {"window", options.window},
                     {"full_layers", decode.num_full_layers()},
                     {"experts", options.experts},
                     {"expert_bytes", decode.ExpertBytes()}};
  report["batches"] = options.batch;
  report["rows_per_sequence"] = options.rows_per_sequence;
  report["context"] = options.context;
  report["profiles"] = options.profiles;
  report["rows"] = Json::array();
  for (const int32_t batch : options.batch) {
    decode.UseRows(static_cast<size_t>(batch));
    double full = 0.0;
    for (const double density : options.density) {
      Json row = Measure(*backend, decode, options, batch, density, weight_bytes, bandwidth);
      if (density >= 1.0) full = row["milliseconds"].get<double>();
      if (full > 0.0) row["speedup_over_full"] = full / row["milliseconds"].get<double>();
      report["rows"].push_back(std::move(row));
    }
  }
  return report;
}

void Print(const Json& report) {
  std::printf(
      "%s, %s weights; read %.3f TB/s; sequences of %d rows and up to %d tokens; checked; "
      "prepared in %.1f s\n\n",
      report["description"].get<std::string>().c_str(),
      report["model"]["weights"].get<std::string>().c_str(), report["read_tb_per_s"].get<double>(),
      report["rows_per_sequence"].get<int>(), report["context"].get<int>() - 1,
      report["setup_seconds"].get<double>());
  PrintTable(report["rows"], {{"batch", "batch"},
                              {"kind", "kind"},
                              {"union", "union_density", 3},
                              {"head", "head_density", 3},
                              {"ms", "milliseconds", 3},
                              {"best", "best_milliseconds", 3},
                              {"experts", "experts_read_per_layer", 1},
                              {"limit ms", "limit_milliseconds", 3},
                              {"x limit", "times_limit", 2},
                              {"TB/s", "tb_per_s", 3},
                              {"host ms", "host_overhead_milliseconds", 3},
                              {"prepared", "prepared_host_overhead_milliseconds", 3},
                              {"tokens/s", "tokens_per_s", 1},
                              {"x full", "speedup_over_full", 2}});
  if (report["profiles"].get<int>() == 0) return;
  std::printf("\nA profile at random of %d for every row and step, against one for all:\n\n",
              report["profiles"].get<int>());
  Json sparse = Json::array();
  for (const Json& row : report["rows"]) {
    if (row.contains("profiles_milliseconds")) sparse.push_back(row);
  }
  PrintTable(sparse, {{"batch", "batch"},
                      {"union", "union_density", 3},
                      {"one ms", "milliseconds", 3},
                      {"random ms", "profiles_milliseconds", 3},
                      {"one wall", "wall_milliseconds", 3},
                      {"random wall", "profiles_wall_milliseconds", 3}});
}

}  // namespace

void AddDecodeCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("decode", "Whole decode steps of a random model");
  AddDeviceFlags(*command, options->device);
  AddShapeFlags(*command, options->shape);
  const auto size = [&](const char* flag, int32_t& value, const char* what, int32_t most) {
    command->add_option(flag, value, what)->check(CLI::Range(1, most))->capture_default_str();
  };
  size("--layers", options->layers, "Layers of the model", 512);
  size("--width", options->width, "Width of the model", 65536);
  size("--ffn", options->ffn, "Width of the feed-forward part", 262144);
  size("--vocab", options->vocab, "Vocabulary", 1 << 20);
  command->add_option("--batch", options->batch, "Sequences of a step, one number after another")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  size("--rows_per_sequence", options->rows_per_sequence,
       "Rows of each sequence, as drafts are verified; the limit counts each block once for all",
       16);
  size("--context", options->context, "Rows attend to fewer tokens by 1 to --block", 1 << 24);
  size("--distinct_tokens", options->distinct_tokens, "Content of the cache repeats after so many",
       1 << 20);
  command
      ->add_option("--profiles", options->profiles,
                   "Profiles of frozen thresholds, one drawn per row and step; 0: not measured")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  command
      ->add_option("--experts", options->experts,
                   "Experts of each layer, in the place of --ffn, as Qwen3-MoE has; 0: none")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  size("--experts_per_token", options->experts_per_token, "Experts of a row", 64);
  command
      ->add_option("--window", options->window,
                   "Window of the layers, in tokens, of a model with Gemma 3's parts; 0: none")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  size("--window_period", options->window_period, "With --window every so many-th layer is full",
       512);
  size("--expert_ffn", options->expert_ffn, "Width of an expert", 262144);
  command
      ->add_option("--weights", options->weights,
                   "Format of the weights: native is bfloat16, float8 e4m3 but for embedding and "
                   "head, the others are packed at load")
      ->check(CLI::IsMember({"native", "int8", "int4", "float8"}))
      ->capture_default_str();
  command->add_option("--density", options->density, "Union densities; 1 is full attention")
      ->delimiter(',')
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
