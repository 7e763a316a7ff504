// eta-bench matmul: products at the shapes of prefill and decode on the CPU, against the limits of
// the machine, and against oneDNN if the build has it. Every product is checked before it is timed:
// against a sum in double or, of packed weights, against the reference, and a row alone against the
// same row in its batch, bit by bit. With --only=rows: what a pass over a model's layers costs by
// the number of its rows.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/targets.h"
#include "kernels/reference/ops.h"
#include "kernels/weights/host_rows.h"
#include "kernels/weights/integer_groups.h"
#include "tests/bench/eta_bench/eta_bench.h"
#include "tests/bench/machine_limits.h"

#if ETA_BENCH_ONEDNN
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#endif

namespace eta::bench {
namespace {

struct Options {
  int threads = 2;
  double seconds = 0.3;
  std::string only;                  // empty: prefill and decode
  std::vector<std::string> weights;  // names of Weights; empty: all
  std::string model;                 // of ModelLayers, with --only=rows; empty: all
  bool amx = false;                  // of prefill's rows
};

struct Weights {
  std::string name;
  DType dtype = DType::kFloat32;
  WeightFormat format = WeightFormat::kNative;
  std::optional<GgmlLayout> blocks;

  bool packed() const { return blocks.has_value() || format != WeightFormat::kNative; }
};

// Floats, floats that are made blocks at load, and the types of blocks of GGUF files ("q4_k").
std::vector<Weights> AllWeights() {
  std::vector<Weights> all = {{"float32", DType::kFloat32},
                              {"bfloat16", DType::kBFloat16},
                              {"float16", DType::kFloat16},
                              {"int8", DType::kBFloat16, WeightFormat::kInt8},
                              {"int4", DType::kBFloat16, WeightFormat::kInt4}};
  for (uint32_t type = 0; type < 64; ++type) {
    const auto layout = FindGgmlLayout(type);
    if (!layout || !IsPacked(layout->type)) continue;
    all.push_back(
        {absl::AsciiStrToLower(layout->name), DType::kFloat32, WeightFormat::kNative, layout});
  }
  return all;
}

// Random bits as blocks; every 16 bits that may be a float16 are one of a middling size.
std::vector<std::byte> RandomBlocks(std::mt19937& random, const GgmlLayout& layout, size_t count) {
  std::vector<std::byte> blocks(count * layout.block_bytes);
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(random() & 0xFF);
  const std::byte scale[] = {std::byte{0x00}, std::byte{0x24}};  // 2^-6
  for (size_t i = 0; i < blocks.size(); i += layout.block_bytes) {
    const size_t first = layout.type == GgmlType::kQ6_K ? layout.block_bytes - 2 : 0;
    std::copy_n(scale, 2, &blocks[i + first]);
    if (FormOf(layout.type).has_low) std::copy_n(scale, 2, &blocks[i + 2]);
  }
  return blocks;
}

struct Shape {
  int64_t rows;
  int64_t n;
  int64_t k;
};

constexpr Shape kPrefillShapes[] = {{64, 2816, 512},  {512, 768, 512},  {512, 512, 512},
                                    {512, 2816, 512}, {512, 512, 1408}, {509, 1000, 773},
                                    {512, 4096, 4096}};
constexpr Shape kDecodeShapes[] = {
    {1, 2816, 512},  {2, 2816, 512},  {4, 2816, 512},  {8, 2816, 512},  {16, 2816, 512},
    {1, 8192, 2048}, {2, 8192, 2048}, {4, 8192, 2048}, {8, 8192, 2048}, {16, 8192, 2048}};

// The stacked weights of a layer, and layers enough to leave the nearer caches.
struct ModelLayers {
  const char* name;
  int layers;
  std::array<Shape, 4> shapes;  // of all rows that are measured
};
constexpr ModelLayers kModels[] = {
    {"135M", 30, {{{64, 960, 576}, {64, 576, 576}, {64, 3072, 576}, {64, 576, 1536}}}},
    {"1.5B", 10, {{{64, 2560, 2048}, {64, 2048, 2048}, {64, 16384, 2048}, {64, 2048, 8192}}}}};
constexpr int64_t kRowCounts[] = {1, 2, 4, 8, 16, 64};

// One product with random operands. Its float weights are exact in 16 bits.
class Product {
 public:
  Product(cpu::Workers& workers, const Shape& shape, const Weights& weights, bool amx = false)
      : context_{workers, batch_, amx},
        rows_(shape.rows),
        n_(shape.n),
        k_(shape.k),
        weights_(weights) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    x_.resize(static_cast<size_t>(rows_ * k_));
    for (float& value : x_) value = normal(random);
    out_.resize(static_cast<size_t>(rows_ * n_));
    const auto count = static_cast<size_t>(n_ * k_);
    if (weights_.blocks) {
      stored_ = RandomBlocks(random, *weights_.blocks, count / weights_.blocks->block_elements);
    } else {
      stored_.resize(count * SizeOf(weights_.dtype));
      const DType exact = weights_.dtype == DType::kFloat16 ? DType::kFloat16 : DType::kBFloat16;
      for (size_t i = 0; i < count; ++i) {
        StoreElement(weights_.dtype, stored_.data(), static_cast<int64_t>(i),
                     RoundTo(exact, normal(random)));
      }
    }
    const HostMatrix part = Part(n_);
    matrix_ = cpu::PackMatrix(workers, std::span(&part, 1), weights_.format);
  }

  void Run() { RunRows(rows_); }
  // Of the first `count` rows.
  void RunRows(int64_t count) { Multiply(0, count, out_); }

  bool Check() {
    Run();
    if (!(weights_.packed() ? CheckPacked() : CheckFloats())) return false;
    std::vector<float> alone(static_cast<size_t>(n_));
    for (const int64_t r : {int64_t{0}, rows_ / 2, rows_ - 1}) {
      Multiply(r, 1, alone);
      if (std::memcmp(alone.data(), &out_[static_cast<size_t>(r * n_)],
                      alone.size() * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  }

  double flop() const { return 2.0 * static_cast<double>(rows_ * n_ * k_); }
  double bytes() const { return static_cast<double>(matrix_->bytes()); }

#if ETA_BENCH_ONEDNN
  // Of the same weights as float32.
  void RunOneDnn() {
    if (wide_.empty()) {
      wide_.resize(static_cast<size_t>(n_ * k_));
      for (int64_t n = 0; n < n_; ++n) {
        ReadFloats(Part(n_), n, {wide_.data() + n * k_, static_cast<size_t>(k_)});
      }
    }
    dnnl_sgemm('N', 'T', rows_, n_, k_, 1.0f, x_.data(), k_, wide_.data(), k_, 0.0f, out_.data(),
               n_);
  }
#endif

 private:
  // The first `rows` channels.
  HostMatrix Part(int64_t rows) const {
    return {stored_.data(), weights_.dtype, rows, k_,
            weights_.blocks ? &*weights_.blocks : nullptr};
  }

  bool CheckFloats() const {
    std::mt19937 random(2);
    for (int i = 0; i < 500; ++i) {
      const int64_t r = static_cast<int64_t>(random() % static_cast<uint32_t>(rows_));
      const int64_t n = static_cast<int64_t>(random() % static_cast<uint32_t>(n_));
      double sum = 0.0;
      double magnitude = 0.0;
      for (int64_t k = 0; k < k_; ++k) {
        const double term = static_cast<double>(x_[static_cast<size_t>(r * k_ + k)]) *
                            LoadElement(weights_.dtype, stored_.data(), n * k_ + k);
        sum += term;
        magnitude += std::abs(term);
      }
      const double error = std::abs(out_[static_cast<size_t>(r * n_ + n)] - sum) / magnitude;
      if (!(error < (context_.amx ? 1e-5 : 1e-6))) return false;
    }
    return true;
  }

  // Bit by bit, where instructions are fused.
  bool CheckPacked() {
    const HostMatrix part = Part(std::min<int64_t>(n_, 40));
    const auto judge = reference::PackMatrix(std::span(&part, 1), weights_.format);
    std::vector<float> want(static_cast<size_t>(part.rows));
    for (const int64_t r : {int64_t{0}, rows_ / 2, rows_ - 1}) {
      reference::MatMul({{x_.data() + r * k_, 1, k_, k_},
                         judge.get(),
                         {want.data(), 1, part.rows, part.rows},
                         /*accumulate=*/false});
      const float* got = &out_[static_cast<size_t>(r * n_)];
      if (cpu::TargetName(cpu::AttainableTargets().front()) != "SSSE3") {
        if (std::memcmp(got, want.data(), want.size() * sizeof(float)) != 0) return false;
        continue;
      }
      for (size_t n = 0; n < want.size(); ++n) {
        if (!(std::abs(got[n] - want[n]) < 1e-3f)) return false;
      }
    }
    return true;
  }

  void Multiply(int64_t row, int64_t count, std::vector<float>& out) {
    sequence_.num_rows = static_cast<int32_t>(count);
    batch_.sequences = std::span(&sequence_, 1);
    cpu::MatMul(context_, {{x_.data() + row * k_, count, k_, k_},
                           matrix_.get(),
                           {out.data(), count, n_, n_},
                           /*accumulate=*/false,
                           /*rows_of_step=*/true});
  }

  SequenceRows sequence_{.kind = RowKind::kPrefill};
  BatchView batch_;
  cpu::Context context_;
  int64_t rows_, n_, k_;
  const Weights& weights_;
  std::vector<float> x_, out_, wide_;
  std::vector<std::byte> stored_;
  std::unique_ptr<Matrix> matrix_;
};

// Measures products next to the machine's limits.
class Products {
 public:
  explicit Products(const Options& options)
      : options_(options),
        workers_(options.threads),
        peak_(PeakFlops(workers_, options.threads)),
        l3_bytes_(ReadBandwidth(workers_, options.threads, size_t{24} << 20)),
        dram_bytes_(ReadBandwidth(workers_, options.threads, size_t{1} << 30)) {}

  Json Limits() {
    return {{"fma_peak_gflops", peak_ * 1e-9},
            {"fma_peak_gflops_one_thread", PeakFlops(workers_, 1) * 1e-9},
            {"l3_read_gbytes_per_s", l3_bytes_ * 1e-9},
            {"dram_read_gbytes_per_s", dram_bytes_ * 1e-9}};
  }

  Json Measure(const Shape& shape, const Weights& weights, bool prefill) {
    Product product(workers_, shape, weights, prefill && options_.amx);
    if (!product.Check()) {
      Fail(absl::StrCat(weights.name, ", ", shape.rows, " x ", shape.n, " x ", shape.k,
                        ": the product is wrong"));
    }
    if (prefill) peak_ = std::max(peak_, PeakFlops(workers_, options_.threads));
    const Timing timing = bench::Measure(options_.seconds, [&] { product.Run(); });
    Json row = {{"what", prefill ? "prefill" : "decode"},
                {"weights", weights.name},
                {"rows", shape.rows},
                {"n", shape.n},
                {"k", shape.k},
                {"microseconds", timing.best * 1e6},
                {"gflops", product.flop() / timing.best * 1e-9},
                {"gflops_median", product.flop() / timing.median * 1e-9},
                {"share_of_peak", product.flop() / timing.best / peak_},
                {"gbytes_per_s", product.bytes() / timing.best * 1e-9},
                {"gbytes_per_s_median", product.bytes() / timing.median * 1e-9},
                {"share_of_l3_read", product.bytes() / timing.best / l3_bytes_},
                {"share_of_dram_read", product.bytes() / timing.best / dram_bytes_}};
#if ETA_BENCH_ONEDNN
    const Timing peer = bench::Measure(options_.seconds, [&] { product.RunOneDnn(); });
    row["onednn_f32_gflops"] = product.flop() / peer.best * 1e-9;
    row["times_faster_than_onednn"] = peer.best / timing.best;
#endif
    return row;
  }

  // A pass over all layers, for each number of rows in turns. Its time is the sum of each product's
  // best one: another process rarely leaves a whole pass alone.
  Json MeasureRows(const ModelLayers& model, const Weights& weights) {
    std::vector<std::unique_ptr<Product>> products;
    double bytes = 0.0;
    for (int layer = 0; layer < model.layers; ++layer) {
      for (const Shape& shape : model.shapes) {
        if (weights.blocks && shape.k % weights.blocks->block_elements != 0) continue;
        products.push_back(std::make_unique<Product>(workers_, shape, weights));
        if (!products.back()->Check()) {
          Fail(absl::StrCat(weights.name, ", ", model.name, ": a product is wrong"));
        }
        bytes += products.back()->bytes();
      }
    }
    std::array<std::vector<double>, std::size(kRowCounts)> best;
    best.fill(std::vector<double>(products.size(), std::numeric_limits<double>::infinity()));
    const Stopwatch total;
    for (int pass = 0; pass < 3 || total.seconds() < options_.seconds; ++pass) {
      for (size_t c = 0; c < best.size(); ++c) {
        for (size_t i = 0; i < products.size(); ++i) {
          const Stopwatch one;
          products[i]->RunRows(kRowCounts[c]);
          best[c][i] = std::min(best[c][i], one.seconds());
        }
      }
    }
    const auto seconds = [&](size_t c) { return std::reduce(best[c].begin(), best[c].end()); };
    Json row = {{"model", model.name},
                {"weights", weights.name},
                {"megabytes", bytes * 1e-6},
                {"one_row_microseconds", seconds(0) * 1e6},
                {"gbytes_per_s", bytes / seconds(0) * 1e-9}};
    for (size_t c = 1; c < best.size(); ++c) {
      row[absl::StrCat("times_one_row_", kRowCounts[c])] = seconds(c) / seconds(0);
    }
    return row;
  }

 private:
  const Options& options_;
  cpu::Workers workers_;
  double peak_;
  double l3_bytes_;
  double dram_bytes_;
};

std::vector<Weights> Chosen(const Options& options) {
  std::vector<Weights> all = AllWeights();
  std::erase_if(all, [&](const Weights& weights) {
    return !options.weights.empty() && std::find(options.weights.begin(), options.weights.end(),
                                                 weights.name) == options.weights.end();
  });
  return all;
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const Weights& weights : AllWeights()) names.push_back(weights.name);
  return names;
}

Json Run(const Options& options) {
  if (const std::string why = cpu::WhyNoAmx(); options.amx && !why.empty()) Fail("--amx: " + why);
#if ETA_BENCH_ONEDNN
  omp_set_num_threads(options.threads);
#endif
  Products products(options);
  Json report = {{"bench", "matmul"}, {"threads", options.threads}, {"limits", products.Limits()}};
  report["rows"] = Json::array();
  // The formats of one shape are measured one after the other, so that the machine is the same.
  const auto measure = [&](std::span<const Shape> shapes, bool prefill) {
    for (const Shape& shape : shapes) {
      for (const Weights& weights : Chosen(options)) {
        if (weights.blocks && shape.k % weights.blocks->block_elements != 0) continue;
        report["rows"].push_back(products.Measure(shape, weights, prefill));
      }
    }
  };
  if (options.only == "rows") {
    for (const ModelLayers& model : kModels) {
      if (!options.model.empty() && options.model != model.name) continue;
      for (const Weights& weights : Chosen(options)) {
        report["rows"].push_back(products.MeasureRows(model, weights));
      }
    }
    return report;
  }
  if (options.only != "decode") measure(kPrefillShapes, true);
  if (options.only != "prefill") measure(kDecodeShapes, false);
  return report;
}

void Print(const Json& report) {
  std::printf("%s; every product checked\n\n", report["limits"].dump().c_str());
  if (report["rows"].front().contains("model")) {
    PrintTable(report["rows"], {{"model", "model"},
                                {"weights", "weights"},
                                {"MB", "megabytes"},
                                {"us, 1 row", "one_row_microseconds"},
                                {"GB/s", "gbytes_per_s", 1},
                                {"x, 2 rows", "times_one_row_2", 2},
                                {"4", "times_one_row_4", 2},
                                {"8", "times_one_row_8", 2},
                                {"16", "times_one_row_16", 2},
                                {"64", "times_one_row_64", 2}});
    return;
  }
  PrintTable(report["rows"], {{"what", "what"},
                              {"weights", "weights"},
                              {"rows", "rows"},
                              {"n", "n"},
                              {"k", "k"},
                              {"us", "microseconds", 1},
                              {"GFLOP/s", "gflops"},
                              {"% of peak", "share_of_peak", 0, 100.0},
                              {"GB/s", "gbytes_per_s", 1},
                              {"% of L3", "share_of_l3_read", 0, 100.0},
                              {"% of memory", "share_of_dram_read", 0, 100.0},
                              {"x oneDNN", "times_faster_than_onednn", 2}});
}

}  // namespace

void AddMatmulCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("matmul", "Products of a model's shapes on the CPU");
  command->add_option("--threads", options->threads)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "Of each measurement")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  command->add_option("--only", options->only)->check(CLI::IsMember({"prefill", "decode", "rows"}));
  command->add_option("--model", options->model, "Whose layers --only=rows takes, by default all")
      ->check(CLI::IsMember({"135M", "1.5B"}));
  command->add_option("--weights", options->weights, "Formats of weights, by default all")
      ->check(CLI::IsMember(Names()))
      ->delimiter(',');
  command->add_flag("--amx", options->amx, "Prefill's rows on AMX tiles");
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
