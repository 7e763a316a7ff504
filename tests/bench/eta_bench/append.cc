// eta-bench append: the part of a layer that stores a decode step's keys: RoPE, AppendKv and the
// threshold predictor, which a GPU does as one kernel. Rows stand at evenly spread places in their
// blocks. A step that fills a block is timed, or as many as rows ask for, and one that fills none;
// their mean is that of a long run.

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "kernels/params/layer.h"
#include "kernels/system/usable_cpus.h"
#include "tests/bench/eta_bench/data.h"
#include "tests/bench/eta_bench/eta_bench.h"

namespace eta::bench {
namespace {

struct Options {
  DeviceFlags device;
  ShapeFlags shape;
  std::vector<int32_t> batch = {1, 16, 64};
  int32_t context = 4096;
  int iterations = 64;
};

// What the model has beside the records: C [HKV, d, d] and k_0 [HKV, d] of a layer.
struct Metric {
  std::vector<float> metric, centre;

  Metric(const KvGeometry& geometry, uint64_t seed) {
    const auto d = static_cast<size_t>(geometry.head_dim);
    const auto heads = static_cast<size_t>(geometry.num_kv_heads);
    metric.resize(heads * d * d);
    for (size_t h = 0; h < heads; ++h) {
      for (size_t i = 0; i < d; ++i) {
        for (size_t j = 0; j < d; ++j) {
          float sum = i == j ? 0.25f : 0.0f;
          for (size_t r = 0; r < 4; ++r) {
            const size_t factor = (h * 4 + r) * d;
            sum += RandomNormal(seed, factor + i) * RandomNormal(seed, factor + j);
          }
          metric[(h * d + i) * d + j] = sum;
        }
      }
    }
    for (size_t i = 0; i < heads * d; ++i) centre.push_back(0.5f * RandomNormal(seed + 1, i));
  }
};

// The rows of a step over one layer's cache, on any backend.
class AppendRows {
 public:
  AppendRows(Backend& backend, const Options& options, const KvContent& content,
             const Metric& metric, std::span<const SequencePlace> places)
      : backend_(backend), options_(options), content_(content), places_(places) {
    const KvGeometry& geometry = content.geometry();
    const auto d = static_cast<size_t>(geometry.head_dim);
    const auto heads = static_cast<size_t>(options.shape.heads);
    int32_t blocks = 0;
    for (const SequencePlace& place : places) {
      for (const int32_t block : place.block_table) blocks = std::max(blocks, block + 1);
    }
    pool_ = AllocatePool(backend, geometry, blocks);
    layer_ = pool_.view();
    if (geometry.index == IndexKind::kOutlier) {
      metric_ = UploadFloats(backend, metric.metric);
      centre_ = UploadFloats(backend, metric.centre);
      layer_.index_metric = metric_->as<float>();
      layer_.index_centre = centre_->as<float>();
    }
    std::vector<SequencePlace> histories(places.begin(), places.end());
    for (SequencePlace& place : histories) --place.num_tokens;
    content.Fill(backend, histories, {&layer_, 1});
    for (const SequencePlace& place : places) {
      rows_.push_back({.row_begin = static_cast<int32_t>(rows_.size()),
                       .num_rows = 1,
                       .position = place.num_tokens - 1,
                       .kind = RowKind::kDecode,
                       .rope_theta = 10000.0f,
                       .block_table = place.block_table});
    }
    tokens_.assign(rows_.size(), 0);
    padded_rows_ = backend.PaddedRows(static_cast<int64_t>(rows_.size()));
    const auto padded = static_cast<size_t>(padded_rows_);
    const std::vector<float> ones(heads * d * std::max(padded, heads), 0.01f);
    q_ = UploadFloats(backend, std::span(ones).first(padded * heads * d));
    weight_ = UploadFloats(backend, std::span(ones).first(heads * heads * d));
    bias_ = UploadFloats(backend, std::span(ones).first(heads));
    thresholds_ = UploadFloats(backend, std::span(ones).first(padded * heads));
    SetKeys();
  }

  // The keys and values of the step, as before any rotation.
  void SetKeys() {
    const KvGeometry& geometry = content_.geometry();
    const auto d = static_cast<size_t>(geometry.head_dim);
    const size_t width = static_cast<size_t>(geometry.num_kv_heads) * d;
    std::vector<float> keys(static_cast<size_t>(padded_rows_) * width);
    for (size_t r = 0; r < places_.size(); ++r) {
      const int32_t token = content_.TokenAt(places_[r].id, places_[r].num_tokens - 1);
      std::copy_n(content_.Key(token, 0), width,
                  keys.begin() + static_cast<std::ptrdiff_t>(r * width));
    }
    k_ = UploadFloats(backend_, keys);
    v_ = UploadFloats(backend_, keys);
  }

  void Plan() { backend_.Plan({tokens_, rows_}); }
  void Append() {
    const KvGeometry& geometry = content_.geometry();
    const int64_t heads = options_.shape.heads;
    const int64_t width = int64_t{geometry.num_kv_heads} * geometry.head_dim;
    const TensorView q = View(*q_, heads * geometry.head_dim);
    const TensorView k = View(*k_, width);
    backend_.Rope({.q = q, .k = k, .head_dim = geometry.head_dim});
    backend_.AppendKv({.k = k, .v = View(*v_, width), .geometry = geometry, .kv = layer_});
    backend_.PredictThresholds({.layer = 0,
                                .q = q,
                                .weight = weight_->as<float>(),
                                .bias = bias_->as<float>(),
                                .out = View(*thresholds_, heads)});
  }
  void RunOnce() {
    Plan();
    Append();
    RequireOk(backend_.Finish());
  }

  // Those of the rows whose step fills a block.
  std::vector<size_t> Filling() const {
    std::vector<size_t> filling;
    for (size_t r = 0; r < places_.size(); ++r) {
      if (places_[r].num_tokens % content_.geometry().block_size == 0) filling.push_back(r);
    }
    return filling;
  }
  BlockRecord LastRecord(size_t row, int32_t kv_head) const {
    return backend_.ReadRecord(content_.geometry(), layer_, places_[row].block_table.back(),
                               kv_head);
  }

 private:
  TensorView View(const Buffer& buffer, int64_t cols) const {
    return {buffer.as<float>(), padded_rows_, cols, cols};
  }

  Backend& backend_;
  const Options& options_;
  const KvContent& content_;
  std::span<const SequencePlace> places_;
  LayerPool pool_;
  KvLayerView layer_;
  std::unique_ptr<Buffer> metric_, centre_, q_, k_, v_, weight_, bias_, thresholds_;
  std::vector<SequenceRows> rows_;
  std::vector<int32_t> tokens_;
  int64_t padded_rows_ = 0;
};

// The largest difference between elements, in units of `step`.
double Steps(const std::vector<float>& got, const std::vector<float>& want, double step) {
  double most = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!(difference <= most * step)) most = difference / step;
  }
  return most;
}

// Fails if a record that the step fills differs from the reference's by more than a step.
void Check(const AppendRows& rows, const AppendRows& reference, size_t row, size_t its_row,
           int32_t kv_heads) {
  for (int32_t h = 0; h < kv_heads; ++h) {
    const BlockRecord got = rows.LastRecord(row, h);
    const BlockRecord want = reference.LastRecord(its_row, h);
    float largest = 1e-3f;
    for (const float x : want.mu) largest = std::max(largest, std::abs(x));
    const double step = want.step > 0.0f ? want.step : largest / 127.0;
    const double outlier_step = want.outlier_step > 0.0f ? want.outlier_step : 1.0;
    if (Steps(got.mu, want.mu, step) > 1.1 || Steps(got.sigma, want.sigma, step) > 1.1 ||
        Steps(got.outlier, want.outlier, outlier_step) > 1.1 ||
        Steps(got.v_total, want.v_total, 1.0) > 0.1) {
      Fail(absl::StrCat("row ", row, ": its record differs from the reference's"));
    }
  }
}

// The rows' sequences, at evenly spread places; with `fills` some row is the last of its block.
std::vector<SequencePlace> Places(const Options& options, std::span<const int32_t> table,
                                  int32_t batch, bool fills) {
  const int32_t b = options.shape.block;
  const int32_t blocks_each = options.context / b;
  std::vector<SequencePlace> places;
  for (int32_t row = 0; row < batch; ++row) {
    const auto phase = static_cast<int32_t>(int64_t{row} * b / std::max(batch, b));
    const auto first = static_cast<size_t>(row) * static_cast<size_t>(blocks_each);
    places.push_back({row, options.context - phase - (fills ? 0 : b - batch),
                      table.subspan(first, static_cast<size_t>(blocks_each))});
  }
  return places;
}

Json Measure(Backend& backend, const Options& options, int32_t batch, cpu::Workers& workers) {
  const KvGeometry geometry = options.shape.geometry();
  const int32_t b = geometry.block_size;
  const KvContent content(geometry, options.context / b, options.device.seed, workers);
  const Metric metric(geometry, options.device.seed + 9);
  const int32_t blocks_each = options.context / b;
  const std::vector<int32_t> table = DealBlocks(batch, blocks_each, options.device.seed);
  const std::vector<SequencePlace> places = Places(options, table, batch, /*fills=*/true);
  AppendRows rows(backend, options, content, metric, places);
  rows.RunOnce();

  DeviceFlags flags;
  flags.backend = "reference";
  const std::unique_ptr<Backend> judge = OpenBackend(flags);
  const std::vector<size_t> filling = rows.Filling();
  std::vector<int32_t> own(static_cast<size_t>(blocks_each));
  for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<int32_t>(i);
  const SequencePlace copy = {places[filling[0]].id, places[filling[0]].num_tokens, own};
  AppendRows reference(*judge, options, content, metric, {&copy, 1});
  reference.RunOnce();
  Check(rows, reference, filling[0], 0, geometry.num_kv_heads);

  const auto time = [&](AppendRows& of) {
    return TimeSteps(backend, options.device.samples,
                     [&] {
                       of.Plan();
                       for (int i = 0; i < options.iterations; ++i) of.Append();
                     })
        .DividedBy(options.iterations);
  };
  const StepTiming fills = time(rows);
  StepTiming idle = fills;
  if (batch < b) {
    const std::vector<SequencePlace> between = Places(options, table, batch, /*fills=*/false);
    AppendRows others(backend, options, content, metric, between);
    if (!others.Filling().empty()) Fail("a row fills a block");
    idle = time(others);
  }
  const double share = std::min(1.0, static_cast<double>(batch) / b);  // of steps that fill
  const double mean = share * fills.median + (1.0 - share) * idle.median;
  return {{"batch", batch},
          {"heads", options.shape.heads},
          {"kv_heads", geometry.num_kv_heads},
          {"head_dim", geometry.head_dim},
          {"kv_dtype", options.shape.kv_dtype},
          {"index", options.shape.index},
          {"index_dtype", options.shape.index_dtype},
          {"filling", filling.size()},
          {"microseconds", mean * 1e6},
          {"fill_microseconds", fills.median * 1e6},
          {"idle_microseconds", idle.median * 1e6},
          {"wall_microseconds", fills.wall * 1e6},
          {"device_time", fills.on_device}};
}

Json Run(const Options& options) {
  options.shape.Check();
  if (options.context % options.shape.block != 0) Fail("--context: not a multiple of --block");
  const std::unique_ptr<Backend> backend = OpenBackend(options.device);
  cpu::Workers workers(ReadUsableCpus().threads());
  Json report =
      BeginReport("append", options.device, *backend, MeasureReadBandwidth(options.device));
  report["rows"] = Json::array();
  for (const int32_t batch : options.batch) {
    report["rows"].push_back(Measure(*backend, options, batch, workers));
  }
  return report;
}

void Print(const Json& report) {
  std::printf("%s; a record checked\n\n", report["description"].get<std::string>().c_str());
  PrintTable(report["rows"], {{"batch", "batch"},
                              {"d", "head_dim"},
                              {"index", "index"},
                              {"fill", "filling"},
                              {"us", "microseconds", 2},
                              {"filling us", "fill_microseconds", 2},
                              {"else us", "idle_microseconds", 2}});
}

}  // namespace

void AddAppendCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("append", "One layer's RoPE, keys, records and thresholds of a step");
  AddDeviceFlags(*command, options->device);
  AddShapeFlags(*command, options->shape);
  command->add_option("--batch", options->batch, "Rows")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--context", options->context, "Tokens of each row")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  command->add_option("--iterations", options->iterations, "Layers' worth of ops in a timed step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
