// eta-bench matmul: products at the shapes of prefill and decode on the CPU, against the limits of
// the machine, and against oneDNN if the build has it. Every product is checked before it is timed:
// against a sum in double, and a row alone against the same row in its batch, bit by bit.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/targets.h"
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
  std::string only;  // empty: both
  bool amx = false;  // of prefill's rows
};

struct Weights {
  const char* name;
  DType dtype;
  WeightFormat format;
};

constexpr Weights kWeights[] = {{"float32", DType::kFloat32, WeightFormat::kNative},
                                {"bfloat16", DType::kBFloat16, WeightFormat::kNative},
                                {"float16", DType::kFloat16, WeightFormat::kNative},
                                {"int8", DType::kBFloat16, WeightFormat::kInt8}};

struct Shape {
  int64_t rows;
  int64_t n;
  int64_t k;
};

constexpr Shape kPrefillShapes[] = {{512, 768, 512},  {512, 512, 512},  {512, 2816, 512},
                                    {512, 512, 1408}, {509, 1000, 773}, {512, 4096, 4096}};
constexpr Shape kDecodeShapes[] = {{1, 2816, 512},  {4, 2816, 512},  {8, 2816, 512},
                                   {16, 2816, 512}, {1, 8192, 2048}, {4, 8192, 2048},
                                   {8, 8192, 2048}, {16, 8192, 2048}};

// One product with random operands. Its weights are exact in 16 bits.
class Product {
 public:
  Product(cpu::Workers& workers, const Shape& shape, const Weights& weights, bool amx = false)
      : context_{workers, batch_, amx}, rows_(shape.rows), n_(shape.n), k_(shape.k) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    x_.resize(static_cast<size_t>(rows_ * k_));
    for (float& value : x_) value = normal(random);
    weight_.resize(static_cast<size_t>(n_ * k_));
    std::vector<uint16_t> narrow(weight_.size());
    const DType rounded = weights.dtype == DType::kFloat16 ? DType::kFloat16 : DType::kBFloat16;
    for (size_t i = 0; i < weight_.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      StoreElement(rounded, narrow.data(), at, normal(random));
      weight_[i] = LoadElement(rounded, narrow.data(), at);
    }
    const void* data = narrow.data();
    if (weights.dtype == DType::kFloat32) data = weight_.data();
    const HostMatrix part{data, weights.dtype, n_, k_};
    matrix_ = cpu::PackMatrix(std::span(&part, 1), weights.format);
    out_.resize(static_cast<size_t>(rows_ * n_));
    exact_ = weights.format == WeightFormat::kNative;
  }

  void Run() { Multiply(0, rows_, out_); }

  bool Check() {
    Run();
    std::mt19937 random(2);
    for (int i = 0; i < 500; ++i) {
      const int64_t r = static_cast<int64_t>(random() % static_cast<uint32_t>(rows_));
      const int64_t n = static_cast<int64_t>(random() % static_cast<uint32_t>(n_));
      double sum = 0.0;
      double magnitude = 0.0;
      for (int64_t k = 0; k < k_; ++k) {
        const double term = static_cast<double>(x_[static_cast<size_t>(r * k_ + k)]) *
                            weight_[static_cast<size_t>(n * k_ + k)];
        sum += term;
        magnitude += std::abs(term);
      }
      const double error = std::abs(out_[static_cast<size_t>(r * n_ + n)] - sum) / magnitude;
      if (!(error < (!exact_ ? 1e-2 : context_.amx ? 1e-5 : 1e-6))) return false;
    }
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
  void RunOneDnn() {
    dnnl_sgemm('N', 'T', rows_, n_, k_, 1.0f, x_.data(), k_, weight_.data(), k_, 0.0f, out_.data(),
               n_);
  }
#endif

 private:
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
  bool exact_;
  std::vector<float> x_, weight_, out_;
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

 private:
  const Options& options_;
  cpu::Workers workers_;
  double peak_;
  double l3_bytes_;
  double dram_bytes_;
};

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
      for (const Weights& weights : kWeights) {
        report["rows"].push_back(products.Measure(shape, weights, prefill));
      }
    }
  };
  if (options.only != "decode") measure(kPrefillShapes, true);
  if (options.only != "prefill") measure(kDecodeShapes, false);
  return report;
}

void Print(const Json& report) {
  std::printf("%s; every product checked\n\n", report["limits"].dump().c_str());
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
  command->add_option("--only", options->only)->check(CLI::IsMember({"prefill", "decode"}));
  command->add_flag("--amx", options->amx, "Prefill's rows on AMX tiles");
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
