// eta-bench prefill: gated attention of a prompt, full and sparse; the cost of appending its keys
// and values with their index; and, if asked for, the cost of calibration over its scores.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/calibration_cells.h"
#include "kernels/params/calibration.h"
#include "kernels/params/layer.h"
#include "kernels/system/usable_cpus.h"
#include "tests/bench/eta_bench/eta_bench.h"
#include "tests/bench/eta_bench/rows.h"

namespace eta::bench {
namespace {

struct Options {
  DeviceFlags device;
  ShapeFlags shape;
  std::vector<int32_t> tokens = {4096, 8192, 32768};
  int32_t chunk = 0;  // 0: the whole prompt at once
  float threshold = 1.0f;
  int iterations = 4;
  bool calibrate = false;
  double sparse = 0.0;  // share of the keys that tiles of sparse prefill shall read; 0: none
  bool shared_reads = false;
};

// Of the neighbouring rows whose queries are alike.
constexpr float kTopicAgreement = 0.9f;

// Queries [rows, HQ, d] of rows from `position` on. Rows of a tile and the heads of a group have
// most of a query in common, so that they select mostly the same blocks, as in text.
std::vector<float> TopicQueries(int32_t rows, int32_t position, const ShapeFlags& shape,
                                uint64_t seed) {
  std::vector<float> queries =
      RandomQueries(rows, shape.heads, shape.kv_heads, shape.head_dim, 0.7f, seed);
  const auto d = static_cast<size_t>(shape.head_dim);
  const auto heads = static_cast<size_t>(shape.heads);
  const auto group = static_cast<size_t>(shape.heads / shape.kv_heads);
  const float own = std::sqrt(1.0f - kTopicAgreement * kTopicAgreement);
  for (size_t i = 0; i < queries.size(); ++i) {
    const size_t head = i / d % heads;
    const size_t tile = (i / d / heads + static_cast<size_t>(position)) / kPrefillTileRows;
    const size_t topic = (tile * heads / group + head / group) * d + i % d;
    queries[i] = kTopicAgreement * RandomNormal(seed + 5, topic) + own * queries[i];
  }
  return queries;
}

// Consecutive rows of prompts whose earlier tokens are in the cache.
class PrefillRows {
 public:
  PrefillRows(Backend& backend, const ShapeFlags& shape, std::vector<SequenceRows> sequences,
              float threshold, uint64_t seed)
      : backend_(backend), shape_(shape), sequences_(std::move(sequences)) {
    std::vector<float> queries;
    int32_t blocks = 1;
    for (SequenceRows& sequence : sequences_) {
      sequence.row_begin = num_rows_;
      sequence.kind = RowKind::kPrefill;
      sequence.rope_theta = 10000.0f;
      sequence.calibrate = true;
      num_rows_ += sequence.num_rows;
      const std::vector<float> of_sequence =
          TopicQueries(sequence.num_rows, sequence.position, shape, seed);
      queries.insert(queries.end(), of_sequence.begin(), of_sequence.end());
      blocks = std::max(blocks, (sequence.position + sequence.num_rows) / shape.block);
    }
    tokens_.resize(static_cast<size_t>(num_rows_));
    queries_ = UploadFloats(backend, queries);
    SetThreshold(threshold);
    const auto rows = static_cast<size_t>(num_rows_);
    words_ = blocks / 64 + 1;
    masks_ = Require(backend.Allocate(rows * static_cast<size_t>(shape.heads * words_) * 8));
    attended_.resize(rows * static_cast<size_t>(shape.heads));
    read_.resize(rows * static_cast<size_t>(shape.kv_heads));
    values_read_.resize(read_.size());
    out_ = Require(backend.Allocate(queries.size() * sizeof(float)));
    const std::vector<uint64_t> zeros(
        static_cast<size_t>(shape.heads * CalibrationCells(ScoreBins()).size()));
    cells_ = Require(backend.Allocate(zeros.size() * sizeof(uint64_t)));
    backend.Upload(cells_->data(), zeros.data(), zeros.size() * sizeof(uint64_t));
  }

  void SetThreshold(float threshold) {
    thresholds_ = UploadFloats(
        backend_,
        std::vector<float>(tokens_.size() * static_cast<size_t>(shape_.heads), threshold));
  }
  void SetSparse(bool sparse, bool shared_reads) {
    for (SequenceRows& sequence : sequences_) {
      sequence.calibrate = !sparse;
      sequence.attention.sparse_prefill = sparse;
      sequence.attention.shared_reads = shared_reads;
    }
  }

  void Plan() { backend_.Plan({tokens_, sequences_}); }
  void Select(const KvLayerView& layer) {
    auto params = Over<SelectPrefillParams>(layer);
    params.selection = {masks_->as<uint64_t>(), words_};
    params.counts = {attended_.data(), read_.data(), values_read_.data()};
    backend_.SelectPrefillBlocks(params);
  }
  void SelectAndAttend(const KvLayerView& layer) {
    Select(layer);
    Attend(layer);
  }
  // Of the last Select(): what rows attended to, and what tiles read, over all keys.
  double Density() const {
    double attended = 0.0;
    double keys = 0.0;
    for (const int32_t count : attended_) attended += count;
    for (const SequenceRows& s : sequences_) {
      for (int32_t i = 1; i <= s.num_rows; ++i) keys += s.position + i;
    }
    return attended / keys / shape_.heads;
  }
  double Union() const {
    double read = 0.0;
    double keys = 0.0;
    for (const int32_t count : read_) read += count;
    for (const SequenceRows& s : sequences_) {
      const int32_t end = s.position + s.num_rows;
      for (int32_t at = s.position; at < end; at = (at / kPrefillTileRows + 1) * kPrefillTileRows) {
        keys += std::min((at / kPrefillTileRows + 1) * kPrefillTileRows, end);
      }
    }
    return read / keys / shape_.kv_heads;
  }
  const std::vector<int32_t>& attended() const { return attended_; }
  const std::vector<int32_t>& read() const { return read_; }

  void Attend(const KvLayerView& layer) {
    auto params = Over<AttentionParams>(layer);
    params.gate = Gate::kSilu;
    params.beta = kGateBeta;
    params.out = View(*out_, int64_t{shape_.heads} * shape_.head_dim, backend_.activation_dtype());
    params.prefill = {masks_->as<uint64_t>(), words_};
    backend_.PrefillAttention(params);
  }
  void Calibrate(const KvLayerView& layer) {
    auto params = Over<CalibrationParams>(layer);
    params.gate = Gate::kSilu;
    params.beta = kGateBeta;
    params.cells = cells_->as<uint64_t>();
    backend_.CollectCalibration(params);
  }
  std::vector<float> Output() {
    return DownloadFloats(
        backend_, *out_, backend_.activation_dtype(),
        static_cast<size_t>(num_rows_) * static_cast<size_t>(shape_.heads * shape_.head_dim));
  }

 private:
  // What the three ops have in common.
  template <typename Params>
  Params Over(const KvLayerView& layer) const {
    Params params{};
    params.q = View(*queries_, int64_t{shape_.heads} * shape_.head_dim, DType::kFloat32);
    params.thresholds = View(*thresholds_, shape_.heads, DType::kFloat32);
    params.num_query_heads = shape_.heads;
    params.geometry = shape_.geometry();
    params.kv = layer;
    params.softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    return params;
  }
  TensorView View(const Buffer& buffer, int64_t cols, DType dtype) const {
    return {buffer.as<float>(), num_rows_, cols, cols, dtype};
  }

  Backend& backend_;
  ShapeFlags shape_;
  std::vector<SequenceRows> sequences_;
  int32_t num_rows_ = 0;
  std::vector<int32_t> tokens_;
  std::unique_ptr<Buffer> queries_, thresholds_, out_, cells_, masks_;
  int64_t words_ = 0;
  std::vector<int32_t> attended_, read_, values_read_;
};

// Sums of what a step of sparse prefill counted: which rounding may change for a few blocks.
struct Counted {
  double attended = 0.0;
  double read = 0.0;
};

// The output of a ragged step that is cut anywhere: the first token of a prompt, the middle of one,
// the end of another.
std::vector<float> RaggedOutput(Backend& backend, const KvContent& content, const Options& options,
                                bool sparse, Counted& counted) {
  struct Piece {
    int32_t position, num_rows;
  };
  constexpr Piece kPieces[] = {{0, 1}, {70, 50}, {33, 170}, {3900, 130}};
  const int32_t kBlocksEach = 4030 / options.shape.block + 1;
  constexpr auto kSequences = static_cast<int32_t>(std::size(kPieces));
  const std::vector<int32_t> table = DealBlocks(kSequences, kBlocksEach, options.device.seed);
  const LayerPool pool = AllocatePool(backend, content.geometry(), kSequences * kBlocksEach);
  const KvLayerView layer = pool.view();
  std::vector<SequencePlace> places;
  std::vector<SequenceRows> sequences;
  for (const Piece& piece : kPieces) {
    const int32_t total = piece.position + piece.num_rows;
    const auto blocks =
        static_cast<size_t>((total + options.shape.block - 1) / options.shape.block);
    places.push_back(
        {static_cast<int32_t>(places.size()), total,
         std::span(table).subspan(places.size() * static_cast<size_t>(kBlocksEach), blocks)});
    SequenceRows& rows = sequences.emplace_back();
    rows.num_rows = piece.num_rows;
    rows.position = piece.position;
    rows.block_table = places.back().block_table;
  }
  content.Fill(backend, places, {&layer, 1});
  PrefillRows rows(backend, options.shape, sequences, options.threshold, options.device.seed);
  rows.SetSparse(sparse, options.shared_reads);
  rows.Plan();
  sparse ? rows.SelectAndAttend(layer) : rows.Attend(layer);
  RequireOk(backend.Finish());
  counted.attended = std::accumulate(rows.attended().begin(), rows.attended().end(), 0.0);
  counted.read = std::accumulate(rows.read().begin(), rows.read().end(), 0.0);
  return rows.Output();
}

Json Check(Backend& backend, cpu::Workers& workers, const Options& options) {
  DeviceFlags flags;
  flags.backend = "reference";
  const std::unique_ptr<Backend> reference = OpenBackend(flags);
  const KvContent content(options.shape.geometry(), 64, options.device.seed, workers);
  Agreement agreement;
  for (const bool sparse : {false, true}) {
    if (sparse && options.sparse == 0.0) continue;
    Counted of_reference;
    Counted of_backend;
    const std::vector<float> want =
        RaggedOutput(*reference, content, options, sparse, of_reference);
    const std::vector<float> got = RaggedOutput(backend, content, options, sparse, of_backend);
    agreement.Merge(Compare(got, want, options.shape.geometry().dtype, backend.activation_dtype()));
    if (!agreement.ok()) {
      Fail(absl::StrCat(sparse ? "sparse" : "ragged",
                        " prompts: outputs differ from the reference's: ", agreement.ToString()));
    }
    if (!sparse) continue;
    const auto differs = [](double a, double b) { return std::abs(a - b) > 2e-4 * b; };
    if (differs(of_backend.attended, of_reference.attended) ||
        differs(of_backend.read, of_reference.read)) {
      Fail(absl::StrCat("sparse prompts: counted ", of_backend.attended, " and ", of_backend.read,
                        ", the reference ", of_reference.attended, " and ", of_reference.read));
    }
  }
  return {{"largest_error", agreement.largest_error}, {"relative_error", agreement.relative}};
}

// The threshold at which tiles read the wanted share of their keys.
float ThresholdOf(Backend& backend, PrefillRows& rows, const KvLayerView& layer, double share) {
  float low = -20.0f;
  float high = 20.0f;
  for (int i = 0; i < 16; ++i) {
    const float middle = (low + high) / 2;
    rows.SetThreshold(middle);
    rows.Plan();
    rows.Select(layer);
    RequireOk(backend.Finish());
    (rows.Union() > share ? low : high) = middle;
  }
  return high;
}

// Measures AppendKv for `rows`, which may be any sequences.
StepTiming TimeAppend(Backend& backend, const Options& options, const KvContent& content,
                      const BackendTokens& tokens, std::span<const SequenceRows> sequences,
                      int32_t num_rows, const KvLayerView& layer) {
  const std::vector<int32_t> ids(static_cast<size_t>(num_rows));
  const StepTiming all = TimeSteps(backend, options.device.samples, [&] {
    backend.Plan({ids, sequences});
    for (int i = 0; i < options.iterations; ++i) {
      backend.AppendKv(
          {tokens.Keys(0, num_rows), tokens.Values(0, num_rows), content.geometry(), layer});
    }
  });
  return all.DividedBy(options.iterations);
}

Json Measure(Backend& backend, cpu::Workers& workers, const Options& options, int32_t num_tokens) {
  const KvGeometry geometry = options.shape.geometry();
  const Stopwatch setup;
  const int32_t b = geometry.block_size;
  // Rows that stop one short of a full block write no index. Their time tells the index's cost from
  // the rest.
  const int32_t short_sequences = (num_tokens + b - 2) / (b - 1);
  const int32_t num_blocks = (num_tokens + b - 1) / b;
  const KvContent content(geometry, num_blocks, options.device.seed, workers);
  const BackendTokens tokens = content.Upload(backend);
  const std::vector<int32_t> table =
      DealBlocks(1, std::max(num_blocks, short_sequences), options.device.seed);
  const LayerPool pool = AllocatePool(backend, geometry, static_cast<int32_t>(table.size()));
  const KvLayerView layer = pool.view();

  std::vector<SequenceRows> short_rows;
  for (int32_t begin = 0; begin < num_tokens; begin += b - 1) {
    SequenceRows& rows = short_rows.emplace_back();
    rows.row_begin = begin;
    rows.num_rows = std::min(b - 1, num_tokens - begin);
    rows.kind = RowKind::kPrefill;
    rows.rope_theta = 10000.0f;
    rows.block_table = std::span(table).subspan(short_rows.size() - 1, 1);
  }
  SequenceRows whole;
  whole.num_rows = num_tokens;
  whole.kind = RowKind::kPrefill;
  whole.rope_theta = 10000.0f;
  whole.block_table = std::span(table).first(static_cast<size_t>(num_blocks));
  const double setup_seconds = setup.seconds();
  const StepTiming plain =
      TimeAppend(backend, options, content, tokens, short_rows, num_tokens, layer);
  const StepTiming append =
      TimeAppend(backend, options, content, tokens, {&whole, 1}, num_tokens, layer);

  const int32_t chunk = options.chunk > 0 ? std::min(options.chunk, num_tokens) : num_tokens;
  StepTiming attention;
  StepTiming calibration;
  StepTiming sparse;
  StepTiming select;
  double density = 0.0;  // of the last chunk
  double read = 0.0;
  for (int32_t begin = 0; begin < num_tokens; begin += chunk) {
    SequenceRows part = whole;
    part.position = begin;
    part.num_rows = std::min(chunk, num_tokens - begin);
    part.block_table =
        whole.block_table.first(static_cast<size_t>((begin + part.num_rows + b - 1) / b));
    PrefillRows rows(backend, options.shape, {part}, options.threshold, options.device.seed);
    const auto add = [&](void (PrefillRows::*op)(const KvLayerView&), StepTiming& sum) {
      const StepTiming step = TimeSteps(backend, options.device.samples, [&] {
                                rows.Plan();
                                for (int i = 0; i < options.iterations; ++i) (rows.*op)(layer);
                              }).DividedBy(options.iterations);
      sum.median += step.median;
      sum.best += step.best;
      sum.wall += step.wall;
      sum.on_device = step.on_device;
    };
    add(&PrefillRows::Attend, attention);
    if (options.calibrate) add(&PrefillRows::Calibrate, calibration);
    if (options.sparse == 0.0) continue;
    rows.SetSparse(true, options.shared_reads);
    rows.SetThreshold(ThresholdOf(backend, rows, layer, options.sparse));
    add(&PrefillRows::SelectAndAttend, sparse);
    add(&PrefillRows::Select, select);
    density = rows.Density();
    read = rows.Union();
  }
  const double t = num_tokens;
  const double flop = 2.0 * t * (t + 1.0) * options.shape.heads * options.shape.head_dim;
  const double index = std::max(0.0, append.median - plain.median);
  Json row = {{"tokens", num_tokens},
              {"chunk", chunk},
              {"heads", options.shape.heads},
              {"kv_heads", options.shape.kv_heads},
              {"head_dim", options.shape.head_dim},
              {"block", b},
              {"kv_dtype", options.shape.kv_dtype},
              {"index_dtype", options.shape.index_dtype},
              {"threshold", options.threshold},
              {"setup_seconds", setup_seconds},
              {"device_time", attention.on_device},
              {"attention_microseconds", attention.median * 1e6},
              {"best_attention_microseconds", attention.best * 1e6},
              {"flop", flop},
              {"tflops", flop / attention.median * 1e-12},
              {"append_microseconds", append.median * 1e6},
              {"append_without_index_microseconds", plain.median * 1e6},
              {"index_microseconds", index * 1e6},
              {"append_percent", 100.0 * append.median / (append.median + attention.median)},
              {"index_percent", 100.0 * index / (append.median + attention.median)}};
  if (options.calibrate) {
    row["calibration_microseconds"] = calibration.median * 1e6;
    row["calibration_to_attention"] = calibration.median / attention.median;
  }
  if (options.sparse > 0.0) {
    row["sparse_microseconds"] = sparse.median * 1e6;
    row["select_microseconds"] = select.median * 1e6;
    row["density"] = density;
    row["union"] = read;
    row["speedup"] = attention.median / sparse.median;
  }
  return row;
}

Json Run(const Options& options) {
  options.shape.Check();
  const double bandwidth = MeasureReadBandwidth(options.device);
  const std::unique_ptr<Backend> backend = OpenBackend(options.device);
  cpu::Workers workers(ReadUsableCpus().threads());
  Json report = BeginReport("prefill", options.device, *backend, bandwidth);
  report["iterations"] = options.iterations;
  const Stopwatch check;
  report["checks"] = Check(*backend, workers, options);
  report["check_seconds"] = check.seconds();
  report["rows"] = Json::array();
  for (const int32_t tokens : options.tokens) {
    report["rows"].push_back(Measure(*backend, workers, options, tokens));
  }
  return report;
}

void Print(const Json& report) {
  std::printf("%s; ragged prompts checked against the reference\n\n",
              report["description"].get<std::string>().c_str());
  std::vector<Column> columns = {{"tokens", "tokens"},
                                 {"chunk", "chunk"},
                                 {"attention us", "attention_microseconds", 1},
                                 {"best", "best_attention_microseconds", 1},
                                 {"TFLOP/s", "tflops", 2},
                                 {"append us", "append_microseconds", 1},
                                 {"without index", "append_without_index_microseconds", 1},
                                 {"append %", "append_percent", 2},
                                 {"index %", "index_percent", 2}};
  if (report["rows"].front().contains("calibration_microseconds")) {
    columns.push_back({"calibration us", "calibration_microseconds", 1});
    columns.push_back({"of attention", "calibration_to_attention", 2});
  }
  if (report["rows"].front().contains("sparse_microseconds")) {
    columns.push_back({"sparse us", "sparse_microseconds", 1});
    columns.push_back({"of it selection", "select_microseconds", 1});
    columns.push_back({"density", "density", 3});
    columns.push_back({"tiles read", "union", 3});
    columns.push_back({"times as fast", "speedup", 2});
  }
  PrintTable(report["rows"], columns);
}

}  // namespace

void AddPrefillCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("prefill", "Gated attention of prompts, and their index");
  AddDeviceFlags(*command, options->device);
  AddShapeFlags(*command, options->shape);
  command->add_option("--tokens", options->tokens, "Lengths of prompts")
      ->delimiter(',')
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "Tokens of a prompt in one step; 0: all of them")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--threshold", options->threshold, "Of every row and head")
      ->capture_default_str();
  command->add_option("--iterations", options->iterations, "Ops in a timed step")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--calibrate", options->calibrate, "Time CollectCalibration of the rows, too");
  command
      ->add_option("--sparse", options->sparse,
                   "Sparse prefill too, whose tiles read this share of their keys")
      ->check(CLI::Range(0.0, 1.0));
  command->add_flag("--shared_reads", options->shared_reads, "Of sparse prefill");
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
