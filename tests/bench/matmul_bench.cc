// Dense kernels against the limits of the machine, and against oneDNN if the build has it: products
// at prefill and decode shapes, attention of a prompt, a whole prefill.
//
//   matmul_bench [--threads N] [--seconds S] [--only prefill|decode|model] [--amx] [--json]
//
// --amx: prefill rows are multiplied on AMX tiles.
//
// Every product is checked before it is timed: against a sum in double, and a row alone against the
// same row in its batch, bit by bit. Exits with 1 if a check fails.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/targets.h"
#include "tests/bench/machine_limits.h"
#include "tests/bench/prefill_case.h"

#if ETA_BENCH_ONEDNN
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#endif

namespace eta::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  int threads = 2;
  double seconds = 0.3;
  std::string only;  // empty: everything
  bool amx = false;
  bool json = false;

  bool Wants(const char* part) const { return only.empty() || only == part; }
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

struct Limits {
  double flops = 0.0;
  double l3_bytes = 0.0;
  double dram_bytes = 0.0;
};

Limits MeasureLimits(cpu::Workers& workers, int threads) {
  constexpr size_t kInL3 = size_t{24} << 20;
  constexpr size_t kInDram = size_t{1} << 30;
  return {PeakFlops(workers, threads), ReadBandwidth(workers, threads, kInL3),
          ReadBandwidth(workers, threads, kInDram)};
}

class Report {
 public:
  Report(const Options& options, const Limits& limits) : options_(options), limits_(limits) {}

  bool ok() const { return ok_; }
  const Json& json() const { return json_; }

  void Prefill(cpu::Workers& workers, const Shape& shape, const Weights& weights) {
    Product product(workers, shape, weights, options_.amx);
    Json entry = Begin("prefill matmul", shape, weights);
    entry["checked"] = Check(product);
    limits_.flops = std::max(limits_.flops, PeakFlops(workers, options_.threads));
    const Timing timing = Measure(options_.seconds, [&] { product.Run(); });
    entry["gflops"] = product.flop() / timing.best / 1e9;
    entry["gflops_median"] = product.flop() / timing.median / 1e9;
    entry["share_of_peak"] = product.flop() / timing.best / limits_.flops;
    AddPeer(product, entry, timing);
    Add(std::move(entry));
  }

  void Decode(cpu::Workers& workers, const Shape& shape, const Weights& weights) {
    Product product(workers, shape, weights);
    Json entry = Begin("decode matmul", shape, weights);
    entry["checked"] = Check(product);
    const Timing timing = Measure(options_.seconds, [&] { product.Run(); });
    const double rate = product.bytes() / timing.best;
    entry["microseconds"] = timing.best * 1e6;
    entry["gbytes_per_s"] = rate / 1e9;
    entry["gbytes_per_s_median"] = product.bytes() / timing.median / 1e9;
    entry["share_of_l3_read"] = rate / limits_.l3_bytes;
    entry["share_of_dram_read"] = rate / limits_.dram_bytes;
    AddPeer(product, entry, timing);
    Add(std::move(entry));
  }

  void WholePrefill(int32_t tokens, int32_t chunk, DType dtype, Gate gate) {
    auto backend =
        MakeBackend({.name = "cpu", .num_threads = options_.threads, .amx = options_.amx});
    if (!backend.ok()) {
      ok_ = false;
      return;
    }
    PrefillCase prefill(**backend, ModelShape(), tokens, chunk, dtype, gate);
    const Timing all = Measure(2 * options_.seconds, [&] { prefill.Run(); });
    const Timing attention = Measure(options_.seconds, [&] { prefill.Attend(); });
    const double flop = prefill.matmul_flop() + prefill.attention_flop();
    Json entry{{"what", "prefill, everything included"},
               {"tokens", tokens},
               {"chunk", chunk},
               {"kv", std::string(Name(dtype))},
               {"gate", gate == Gate::kSilu ? "silu" : "none"}};
    entry["milliseconds"] = all.best * 1e3;
    entry["milliseconds_median"] = all.median * 1e3;
    entry["tokens_per_s"] = tokens / all.best;
    entry["gflops"] = flop / all.best / 1e9;
    entry["share_of_peak"] = flop / all.best / limits_.flops;
    entry["attention_gflops"] = prefill.last_attention_flop() / attention.best / 1e9;
    entry["attention_share_of_peak"] =
        prefill.last_attention_flop() / attention.best / limits_.flops;
    Add(std::move(entry));
  }

 private:
  static Json Begin(const char* what, const Shape& shape, const Weights& weights) {
    return {{"what", what},
            {"weights", weights.name},
            {"rows", shape.rows},
            {"n", shape.n},
            {"k", shape.k}};
  }

  bool Check(Product& product) {
    const bool passed = product.Check();
    ok_ = ok_ && passed;
    return passed;
  }

  void AddPeer([[maybe_unused]] Product& product, [[maybe_unused]] Json& entry,
               [[maybe_unused]] const Timing& ours) const {
#if ETA_BENCH_ONEDNN
    const Timing peer = Measure(options_.seconds, [&] { product.RunOneDnn(); });
    entry["onednn_f32_gflops"] = product.flop() / peer.best / 1e9;
    entry["times_faster_than_onednn"] = peer.best / ours.best;
#endif
  }

  void Add(Json entry) {
    if (!options_.json) std::cout << entry.dump() << std::endl;
    json_.push_back(std::move(entry));
  }

  const Options& options_;
  Limits limits_;
  Json json_ = Json::array();
  bool ok_ = true;
};

int Run(const Options& options) {
#if ETA_BENCH_ONEDNN
  omp_set_num_threads(options.threads);
#endif
  cpu::Workers workers(options.threads);
  const Limits limits = MeasureLimits(workers, options.threads);
  Json machine{{"threads", options.threads},
               {"fma_peak_gflops", limits.flops / 1e9},
               {"fma_peak_gflops_one_thread", PeakFlops(workers, 1) / 1e9},
               {"l3_read_gbytes_per_s", limits.l3_bytes / 1e9},
               {"dram_read_gbytes_per_s", limits.dram_bytes / 1e9}};
  if (!options.json) std::cout << machine.dump() << std::endl;

  Report report(options, limits);
  // The formats of one shape are measured one after the other, so that the machine is the same.
  if (options.Wants("prefill")) {
    for (const Shape& shape : kPrefillShapes) {
      for (const Weights& weights : kWeights) report.Prefill(workers, shape, weights);
    }
  }
  if (options.Wants("decode")) {
    for (const Shape& shape : kDecodeShapes) {
      for (const Weights& weights : kWeights) report.Decode(workers, shape, weights);
    }
  }
  if (options.Wants("model")) {
    report.WholePrefill(2048, 512, DType::kFloat16, Gate::kSilu);
    report.WholePrefill(2048, 2048, DType::kFloat16, Gate::kSilu);
    report.WholePrefill(2048, 512, DType::kFloat32, Gate::kSilu);
    report.WholePrefill(2048, 512, DType::kFloat16, Gate::kNone);
  }
  if (options.json) {
    std::cout << Json{{"machine", machine}, {"results", report.json()}}.dump(2) << "\n";
  }
  return report.ok() ? 0 : 1;
}

}  // namespace
}  // namespace eta::bench

int main(int argc, char** argv) {
  eta::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--amx") {
      options.amx = true;
    } else if (argument == "--only" && has_value) {
      options.only = argv[++i];
    } else if (argument == "--threads" && has_value) {
      options.threads = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--seconds" && has_value) {
      options.seconds = std::atof(argv[++i]);
    } else {
      std::cerr
          << "usage: matmul_bench [--threads N] [--seconds S] [--only PART] [--amx] [--json]\n";
      return 2;
    }
  }
  if (const std::string why = eta::cpu::WhyNoAmx(); options.amx && !why.empty()) {
    std::cerr << "matmul_bench: --amx: " << why << "\n";
    return 2;
  }
  return eta::bench::Run(options);
}
