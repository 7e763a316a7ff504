// eta-bench attention: one layer's decode step, screening included, at densities that real
// thresholds produce. Every row has blocks of its own, and pools are visited in turn, so that keys
// and values come from memory.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/system/usable_cpus.h"
#include "tests/bench/eta_bench/eta_bench.h"
#include "tests/bench/eta_bench/oracle.h"
#include "tests/bench/eta_bench/rows.h"

namespace eta::bench {
namespace {

struct Options {
  DeviceFlags device;
  ShapeFlags shape;
  std::vector<int32_t> batch = {32};
  std::vector<int32_t> context = {131072};
  std::vector<double> density = {1.0, 0.512, 0.355, 0.16};
  std::string thresholds = "absolute";
  bool confirm = false;
  float agreement = 0.7f;
  int iterations = 32;
  int64_t pool_bytes = int64_t{8} << 30;
  int32_t distinct_tokens = 16384;
  int32_t check_context = 4096;
};

// How rows attend: with thresholds of their own and the gate, or as models without a gate do.
AttentionOptions OptionsOf(const Options& options) {
  if (options.thresholds != "relative") return {.confirm = options.confirm};
  return {.sink_blocks = 1,
          .uniform_floor = false,
          .shared_reads = true,
          .confirm = options.confirm,
          .relative = true};
}

// The first and the last row of a case, the last one cut inside a block, at a context that is short
// enough for the reference backend.
class Companion {
 public:
  Companion(Backend& backend, const KvContent& content, const AttentionOptions& attention,
            int32_t heads, std::span<const SequencePlace> places, std::span<const float> queries,
            int32_t longest, uint64_t seed)
      : backend_(backend), content_(content), heads_(static_cast<size_t>(heads)) {
    DeviceFlags flags;
    flags.backend = "reference";
    reference_ = OpenBackend(flags);
    const KvGeometry& geometry = content.geometry();
    const int32_t b = geometry.block_size;
    const int32_t blocks = (longest + b - 1) / b;
    table_ = DealBlocks(2, blocks, seed + 1);
    const size_t width = heads_ * static_cast<size_t>(geometry.head_dim);
    std::vector<SequencePlace> cut, copies;
    std::vector<float> their_queries;
    for (const size_t row : {size_t{0}, places.size() - 1}) {
      rows_.push_back(row);
      cut.push_back(places[row]);
      cut.back().num_tokens = copies.empty() ? longest : longest - b / 3;
      copies.push_back(cut.back());
      copies.back().block_table = std::span(table_).subspan(
          (copies.size() - 1) * static_cast<size_t>(blocks), static_cast<size_t>(blocks));
      const auto from = queries.begin() + static_cast<std::ptrdiff_t>(row * width);
      their_queries.insert(their_queries.end(), from, from + static_cast<std::ptrdiff_t>(width));
    }
    pool_ = AllocatePool(*reference_, geometry, 2 * blocks);
    const KvLayerView layer = pool_.view();
    content.Fill(*reference_, copies, {&layer, 1});
    ours_ = std::make_unique<DecodeRows>(backend, geometry, attention, heads, cut, their_queries);
    theirs_ = std::make_unique<DecodeRows>(*reference_, geometry, attention, heads, copies,
                                           their_queries);
  }

  // `layer` holds the case's cache. Fails if counts differ at all, or outputs by more than the
  // types allow. With relative thresholds a rounding of a record may be a tie, so constants nearby
  // are tried too.
  Agreement Check(const KvLayerView& layer, const OperatingPoint& point, bool full) {
    std::vector<float> own;
    for (const size_t row : rows_) {
      const auto of_row = std::span(point.thresholds).subspan(row * heads_, heads_);
      own.insert(own.end(), of_row.begin(), of_row.end());
    }
    const int tries = point.relative_c != 0.0f ? 40 : 1;
    for (int i = 0; i < tries; ++i) {
      for (DecodeRows* rows : {ours_.get(), theirs_.get()}) {
        rows->SetThresholds(own);
        rows->SetRelative(point.relative_c + 0.05f * static_cast<float>(i));
        rows->SetAdmitAll(full);
      }
      ours_->RunOnce(layer);
      theirs_->RunOnce(pool_.view());
      if (ours_->tokens_read() == theirs_->tokens_read() &&
          ours_->tokens_attended() == theirs_->tokens_attended() &&
          ours_->values_read() == theirs_->values_read()) {
        break;
      }
      if (i + 1 == tries) Fail("counts differ from the reference's");
    }
    const Agreement agreement = Compare(ours_->Output(), theirs_->Output(),
                                        content_.geometry().dtype, backend_.activation_dtype());
    if (!agreement.ok()) {
      Fail(absl::StrCat("outputs differ from the reference's: ", agreement.ToString()));
    }
    return agreement;
  }

 private:
  Backend& backend_;
  const KvContent& content_;
  size_t heads_;
  std::unique_ptr<Backend> reference_;
  std::vector<int32_t> table_;
  std::vector<size_t> rows_;
  LayerPool pool_;
  std::unique_ptr<DecodeRows> ours_, theirs_;
};

// The rows of a case, and the pools that they read in turn.
class AttentionCase {
 public:
  AttentionCase(Backend& backend, cpu::Workers& workers, const Options& options, int32_t batch,
                int32_t context)
      : backend_(backend),
        workers_(workers),
        options_(options),
        geometry_(options.shape.geometry()),
        batch_(batch),
        context_(context),
        content_(geometry_, std::min(options.distinct_tokens, context) / geometry_.block_size,
                 options.device.seed, workers),
        queries_(RandomQueries(batch, options.shape.heads, options.shape.kv_heads,
                               options.shape.head_dim, options.agreement, options.device.seed)) {
    const int32_t blocks_each = (context + geometry_.block_size - 1) / geometry_.block_size;
    table_ = DealBlocks(batch, blocks_each, options.device.seed);
    for (int32_t row = 0; row < batch; ++row) places_.push_back(Place(row, context, blocks_each));
    const auto pools =
        std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(options.pool_bytes) /
                                                 static_cast<double>(kv_bytes())),
                            1, options.iterations);
    std::vector<KvLayerView> views;
    for (int64_t i = 0; i < pools; ++i) {
      pools_.push_back(AllocatePool(backend, geometry_, batch * blocks_each));
      views.push_back(pools_.back().view());
    }
    content_.Fill(backend, places_, views);
    for (int32_t j = 0; j < content_.num_blocks(); ++j) {
      const int32_t block = places_[0].block_table[static_cast<size_t>(j)];
      for (int32_t h = 0; h < geometry_.num_kv_heads; ++h) {
        records_.push_back(backend.ReadRecord(geometry_, views[0], block, h));
      }
    }
    rows_ = std::make_unique<DecodeRows>(backend, geometry_, OptionsOf(options),
                                         options.shape.heads, places_, queries_);
    oracle_ = std::make_unique<Oracle>(content_, OptionsOf(options), records_, options.shape.heads,
                                       places_, queries_, workers);
    companion_ = std::make_unique<Companion>(
        backend, content_, OptionsOf(options), options.shape.heads, places_, queries_,
        std::min(context, options.check_context), options.device.seed);
  }

  // Fails if the backend's counts or outputs are wrong. It compares two rows at a shorter context
  // with the reference backend. Then it checks, at full size, all counts and the outputs of three
  // rows.
  void Check(double density) {
    const bool full = density >= 1.0;
    const OperatingPoint point = Point(density);
    const std::vector<float>& thresholds = point.thresholds;
    agreement_.Merge(companion_->Check(pools_[0].view(), point, full));
    Set(point, full);
    rows_->RunOnce(pools_.back().view());
    if (!oracle_->Agrees({rows_->tokens_attended(), rows_->tokens_read()}, thresholds, full)) {
      Fail(absl::StrCat("density ", density, ": counts of the whole batch are wrong"));
    }
    // The oracle knows no keys that a head loses late; the reference does.
    if (!options_.confirm) CheckOutputs(density, thresholds, rows_->Output());
  }

  // The agreement over everything that Check() compared.
  const Agreement& agreement() const { return agreement_; }

  // `flops`: of multiply-adds in registers; 0: not known.
  Json Measure(double density, double bytes_per_second, double flops) {
    const bool full = density >= 1.0;
    const OperatingPoint point = Point(density);
    Set(point, full);
    const auto time = [&](bool select, bool attend) {
      const StepTiming all = TimeSteps(backend_, options_.device.samples, [&] {
        rows_->Plan();
        for (int i = 0; i < options_.iterations; ++i) {
          const KvLayerView layer = pools_[static_cast<size_t>(i) % pools_.size()].view();
          // Attention alone uses the first iteration's selection throughout, since pools are alike.
          // So its time includes one selection.
          if (select || i == 0) rows_->Select(layer);
          if (attend) rows_->Attend(layer);
        }
      });
      return all.DividedBy(options_.iterations);
    };
    const StepTiming both = time(true, true);
    const std::vector<int32_t> values_read = rows_->values_read();
    const StepTiming select = time(true, false);
    const StepTiming attend = time(false, true);
    const ExpectedCounts counts{rows_->tokens_attended(), rows_->tokens_read()};
    const double union_density = oracle_->UnionDensity(counts);
    const double value_density = oracle_->UnionDensity({rows_->tokens_attended(), values_read});
    const double bytes =
        (union_density + value_density) / 2.0 * kv_bytes() + (full ? 0.0 : record_bytes());
    const double limit = bytes / bytes_per_second;
    const double work =
        4.0 * geometry_.head_dim *
        std::accumulate(counts.tokens_attended.begin(), counts.tokens_attended.end(), 0.0);
    Json percent_of_fma = nullptr;
    if (flops > 0.0) percent_of_fma = 100.0 * work / flops / attend.median;
    return {{"kind", full ? "full" : "sparse"},
            {"batch", batch_},
            {"context", context_},
            {"heads", options_.shape.heads},
            {"kv_heads", geometry_.num_kv_heads},
            {"head_dim", geometry_.head_dim},
            {"block", geometry_.block_size},
            {"kv_dtype", options_.shape.kv_dtype},
            {"index", options_.shape.index},
            {"index_dtype", options_.shape.index_dtype},
            {"thresholds", options_.thresholds},
            {"relative_c", point.relative_c},
            {"kv_bytes", kv_bytes()},
            {"pools", pools_.size()},
            {"density", density},
            {"union_density", union_density},
            {"confirm", options_.confirm},
            {"value_density", value_density},
            {"head_density", oracle_->HeadDensity(counts)},
            {"microseconds", both.median * 1e6},
            {"best_microseconds", both.best * 1e6},
            {"wall_microseconds", both.wall * 1e6},
            {"device_time", both.on_device},
            {"select_microseconds", select.median * 1e6},
            {"attend_microseconds", attend.median * 1e6},
            {"screening_percent", 100.0 * select.median / both.median},
            {"bytes", bytes},
            {"tb_per_s", bytes / both.median * 1e-12},
            {"percent_of_read", 100.0 * limit / both.median},
            {"percent_of_fma", percent_of_fma},
            {"limit_microseconds", limit * 1e6},
            {"speedup_over_full", nullptr}};
  }

 private:
  SequencePlace Place(int32_t row, int32_t num_tokens, int32_t blocks_each) const {
    return {row, num_tokens,
            std::span(table_).subspan(static_cast<size_t>(row) * static_cast<size_t>(blocks_each),
                                      static_cast<size_t>(blocks_each))};
  }

  double kv_bytes() const { return options_.shape.KvBytes(static_cast<double>(batch_) * context_); }
  double record_bytes() const {
    const int32_t full_blocks = context_ / geometry_.block_size;
    return options_.shape.RecordBytes(static_cast<double>(batch_) * full_blocks);
  }

  void Set(const OperatingPoint& point, bool full) {
    rows_->SetThresholds(point.thresholds);
    rows_->SetRelative(point.relative_c);
    rows_->SetAdmitAll(full);
  }

  // Full attention has a gate too. It uses the thresholds of the sparsest density.
  OperatingPoint Point(double density) const {
    if (density < 1.0) return oracle_->PointFor(density);
    const double least = *std::min_element(options_.density.begin(), options_.density.end());
    return oracle_->PointFor(std::min(least, 0.5));
  }

  void CheckOutputs(double density, std::span<const float> thresholds,
                    const std::vector<float>& output) {
    const int32_t heads = options_.shape.heads;
    const auto d = static_cast<size_t>(geometry_.head_dim);
    std::vector<int32_t> rows = {0, batch_ / 2, batch_ - 1};
    std::vector<Agreement> agreements(rows.size() * static_cast<size_t>(heads));
    workers_.Run(static_cast<int64_t>(agreements.size()), [&](int64_t i, int) {
      const int32_t row = rows[static_cast<size_t>(i / heads)];
      const auto head = static_cast<int32_t>(i % heads);
      const auto at =
          static_cast<size_t>(row) * static_cast<size_t>(heads) + static_cast<size_t>(head);
      agreements[static_cast<size_t>(i)] =
          Compare(std::span(output).subspan(at * d, d),
                  oracle_->Output(row, head, thresholds, density >= 1.0), geometry_.dtype,
                  backend_.activation_dtype());
    });
    for (const Agreement& agreement : agreements) {
      if (!agreement.ok()) {
        Fail(absl::StrCat("density ", density,
                          ": outputs at full size are wrong: ", agreement.ToString()));
      }
      agreement_.Merge(agreement);
    }
  }

  Backend& backend_;
  cpu::Workers& workers_;
  const Options& options_;
  KvGeometry geometry_;
  int32_t batch_;
  int32_t context_;
  KvContent content_;
  std::vector<float> queries_;
  std::vector<int32_t> table_;
  std::vector<SequencePlace> places_;
  std::vector<LayerPool> pools_;
  std::vector<BlockRecord> records_;
  std::unique_ptr<DecodeRows> rows_;
  std::unique_ptr<Oracle> oracle_;
  std::unique_ptr<Companion> companion_;
  Agreement agreement_;
};

void AddSpeedups(Json& rows, size_t first) {
  double full = 0.0;
  for (size_t i = first; i < rows.size(); ++i) {
    if (rows[i]["kind"] == "full") full = rows[i]["microseconds"].get<double>();
  }
  if (full == 0.0) return;
  for (size_t i = first; i < rows.size(); ++i) {
    rows[i]["speedup_over_full"] = full / rows[i]["microseconds"].get<double>();
  }
}

Json Run(const Options& options) {
  options.shape.Check();
  if (options.thresholds == "relative" && options.shape.index != "outlier") {
    Fail("--thresholds=relative: needs --index=outlier");
  }
  const size_t cases = std::max(options.batch.size(), options.context.size());
  if ((options.batch.size() != cases && options.batch.size() != 1) ||
      (options.context.size() != cases && options.context.size() != 1)) {
    Fail("--batch and --context: lists of different lengths");
  }
  for (const int32_t context : options.context) {
    if (context < 4 * options.shape.block) Fail("--context: fewer than four blocks");
  }
  const double bandwidth = MeasureReadBandwidth(options.device);
  const double flops = MeasurePeakFlops(options.device);
  const std::unique_ptr<Backend> backend = OpenBackend(options.device);
  cpu::Workers workers(ReadUsableCpus().threads());
  Json report = BeginReport("attention", options.device, *backend, bandwidth);
  report["iterations"] = options.iterations;
  report["setup_seconds"] = Json::array();
  report["check_seconds"] = Json::array();
  report["checks"] = Json::array();
  report["rows"] = Json::array();
  for (size_t i = 0; i < cases; ++i) {
    const Stopwatch setup;
    AttentionCase attention(*backend, workers, options,
                            options.batch[options.batch.size() == 1 ? 0 : i],
                            options.context[options.context.size() == 1 ? 0 : i]);
    report["setup_seconds"].push_back(setup.seconds());
    const Stopwatch check;
    for (const double density : options.density) attention.Check(density);
    report["check_seconds"].push_back(check.seconds());
    report["checks"].push_back({{"largest_error", attention.agreement().largest_error},
                                {"relative_error", attention.agreement().relative}});
    const size_t first = report["rows"].size();
    for (const double density : options.density) {
      report["rows"].push_back(attention.Measure(density, bandwidth, flops));
    }
    AddSpeedups(report["rows"], first);
  }
  return report;
}

void Print(const Json& report) {
  std::printf("%s; read %.3f TB/s; counts and outputs checked\n\n",
              report["description"].get<std::string>().c_str(),
              report["read_tb_per_s"].get<double>());
  PrintTable(report["rows"], {{"batch", "batch"},
                              {"context", "context"},
                              {"kind", "kind"},
                              {"union", "union_density", 3},
                              {"values", "value_density", 3},
                              {"head", "head_density", 3},
                              {"us", "microseconds", 1},
                              {"best", "best_microseconds", 1},
                              {"screen us", "select_microseconds", 1},
                              {"attend us", "attend_microseconds", 1},
                              {"screen %", "screening_percent", 1},
                              {"limit us", "limit_microseconds", 1},
                              {"TB/s", "tb_per_s", 3},
                              {"% of read", "percent_of_read", 1},
                              {"% of FMA", "percent_of_fma", 1},
                              {"x full", "speedup_over_full", 2}});
}

}  // namespace

void AddAttentionCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("attention", "One layer's decode attention, screening included");
  AddDeviceFlags(*command, options->device);
  AddShapeFlags(*command, options->shape);
  command->add_option("--batch", options->batch, "Rows; a list goes along with --context's")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--context", options->context, "Tokens that each row attends to")
      ->delimiter(',')
      ->check(CLI::Range(16, 1 << 24))
      ->capture_default_str();
  command->add_option("--density", options->density, "Union densities; 1 is full attention")
      ->delimiter(',')
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  command
      ->add_option("--thresholds", options->thresholds,
                   "Of each row and head, or relative to the row's log-sum-exp (--index=outlier)")
      ->check(CLI::IsMember({"absolute", "relative"}))
      ->capture_default_str();
  command->add_flag("--confirm", options->confirm,
                    "Values only of blocks whose own scores reach the threshold");
  command->add_option("--agreement", options->agreement, "What queries of a group share")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--iterations", options->iterations, "Layers' worth of ops in a timed step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      ->add_option("--pool_bytes", options->pool_bytes,
                   "Pools visited in turn hold about this much")
      ->check(CLI::Range(int64_t{1} << 20, int64_t{1} << 40))
      ->capture_default_str();
  command
      ->add_option("--distinct_tokens", options->distinct_tokens,
                   "Content repeats after so many tokens, in other places of memory")
      ->check(CLI::Range(1024, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--check_context", options->check_context,
                   "Context of the comparison with the reference")
      ->check(CLI::Range(256, 1 << 20))
      ->capture_default_str();
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
