// Decode attention against the limits of the machine. It checks every case against the reference,
// and then measures full and sparse attention, screening included, at several context lengths.
//
//   attention_bench [--json] [--quick]
//
// Caches are read from memory, not from L2: copies of the layer are visited in turn. If the
// last-level cache holds them all, the share of the DRAM limit may exceed 100 %.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "kernels/cpu/workers.h"
#include "kernels/system/usable_cpus.h"
#include "tests/bench/decode_case.h"
#include "tests/bench/machine_limits.h"

namespace eta::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kHeadDensity = 0.16;
constexpr double kUnionDensity = 0.30;
constexpr size_t kPoolBytes = size_t{512} << 20;
constexpr double kOutputTolerance = 2e-5;

struct Options {
  bool json = false;
  bool quick = false;
};

struct Limits {
  double bytes_per_second = 0.0;
  double multiply_adds_per_second = 0.0;
};

std::unique_ptr<Backend> Make(const char* name, int threads) {
  auto backend = MakeBackend({name, threads});
  if (!backend.ok()) {
    std::cerr << backend.status() << "\n";
    std::exit(1);
  }
  return std::move(*backend);
}

CaseShape Shape(int32_t kv_heads, int32_t group, int32_t d, DType dtype, int32_t context) {
  CaseShape shape;
  shape.geometry = {kv_heads, d, 64, 4, dtype};
  shape.num_query_heads = kv_heads * group;
  shape.context = context;
  return shape;
}

// The number of copies that makes the cache far larger than L2.
int32_t Copies(const CaseShape& shape) {
  const size_t bytes = static_cast<size_t>(shape.context) * 2 *
                       static_cast<size_t>(shape.geometry.num_kv_heads * shape.geometry.head_dim) *
                       SizeOf(shape.geometry.dtype);
  return static_cast<int32_t>(std::max<size_t>(1, kPoolBytes / bytes));
}

bool MatchesReference(Backend& cpu, Backend& reference, const CaseShape& shape, bool full) {
  DecodeCase tested(cpu, shape);
  DecodeCase expected(reference, shape);
  SetHeadDensity(tested, kHeadDensity);
  for (DecodeCase* attention : {&tested, &expected}) {
    attention->options().admit_all = full;
    attention->SetThreshold(full ? -0.5f : 3.0f);
    attention->Select(0);
    attention->Attend(0);
  }
  const std::vector<float> got = tested.output();
  const std::vector<float> want = expected.output();
  double error = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
  }
  const bool counts = tested.attended_counts() == expected.attended_counts() &&
                      tested.read_counts() == expected.read_counts();
  if (counts && error <= kOutputTolerance) return true;
  std::fprintf(stderr, "d=%d G=%d T=%d %s %s: largest error %.2e, counts %s\n",
               shape.geometry.head_dim, shape.num_query_heads / shape.geometry.num_kv_heads,
               shape.context, std::string(Name(shape.geometry.dtype)).c_str(),
               full ? "full" : "sparse", error, counts ? "equal" : "differ");
  return false;
}

bool CheckAll() {
  auto cpu = Make("cpu", 2);
  auto reference = Make("reference", 1);
  bool good = true;
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    for (const int32_t context : {1, 63, 64, 1000, 4096}) {
      for (const bool full : {true, false}) {
        good &= MatchesReference(*cpu, *reference, Shape(2, 4, 64, dtype, context), full);
      }
    }
    CaseShape many_blocks = Shape(1, 2, 64, dtype, 9000);  // a row takes several tasks
    many_blocks.geometry.block_size = 16;
    good &= MatchesReference(*cpu, *reference, many_blocks, false);
    good &= MatchesReference(*cpu, *reference, Shape(1, 8, 64, dtype, 777), false);
    good &= MatchesReference(*cpu, *reference, Shape(1, 3, 96, dtype, 1300), false);
    good &= MatchesReference(*cpu, *reference, Shape(1, 11, 128, dtype, 500), false);
    good &= MatchesReference(*cpu, *reference, Shape(1, 1, 80, dtype, 500), false);
  }
  return good;
}

Json MeasureBlock(int32_t group, const Limits& limits) {
  auto cpu = Make("cpu", 1);
  const CaseShape shape = Shape(1, group, 64, DType::kFloat16, 64 * 64);  // 1 MiB: inside L2
  DecodeCase attention(*cpu, shape);
  attention.SetThreshold(1.0f);
  attention.options().admit_all = true;
  attention.Select(0);
  constexpr int kBlocks = 64;
  const Timing run = Measure(0.5, [&] { attention.Attend(0); });
  const Timing timing = {run.best / kBlocks, run.median / kBlocks};
  const double compute = 2.0 * 64 * 64 * group / limits.multiply_adds_per_second;
  return {{"group", group},
          {"best_us", timing.best * 1e6},
          {"median_us", timing.median * 1e6},
          {"percent_of_compute_limit", 100.0 * compute / timing.best}};
}

struct Step {
  Timing select;
  Timing attend;
  Densities densities;
  double limit = 0.0;  // in seconds
  bool memory_bound = false;
};

Step MeasureStep(DecodeCase& attention, double seconds, const Limits& limits) {
  const CaseShape& shape = attention.shape();
  Step step;
  const auto all = [&](const std::function<void(int32_t)>& op) {
    int32_t copy = 0;
    return Measure(seconds, [&] {
      copy = (copy + 1) % shape.copies;
      op(copy);
    });
  };
  step.select = all([&](int32_t copy) { attention.Select(copy); });
  step.attend = all([&](int32_t copy) { attention.Attend(copy); });
  step.densities = attention.densities();
  const double d = shape.geometry.head_dim;
  const double bytes = static_cast<double>(attention.tokens_read()) * 2 * d *
                       static_cast<double>(SizeOf(shape.geometry.dtype));
  const double work = static_cast<double>(attention.tokens_attended()) * 2 * d;
  const double memory = bytes / limits.bytes_per_second;
  const double compute = work / limits.multiply_adds_per_second;
  step.memory_bound = memory > compute;
  step.limit = std::max(memory, compute);
  return step;
}

Json Report(const char* kind, int32_t context, int threads, const Step& step) {
  const double total = step.select.best + step.attend.best;
  return {{"kind", kind},
          {"context", context},
          {"threads", threads},
          {"head_density", step.densities.head},
          {"union_density", step.densities.kv_union},
          {"select_best_us", step.select.best * 1e6},
          {"attend_best_us", step.attend.best * 1e6},
          {"attend_median_us", step.attend.median * 1e6},
          {"total_median_us", (step.select.median + step.attend.median) * 1e6},
          {"limit", step.memory_bound ? "dram" : "fma"},
          {"attend_percent_of_limit", 100.0 * step.limit / step.attend.best},
          {"screening_percent_of_total", 100.0 * step.select.best / total}};
}

// The agreement of heads at which both the union and the head density meet their targets.
float FindAgreement(Backend& cpu, CaseShape shape) {
  shape.copies = 1;
  float best = 0.0f;
  double gap = 1.0;
  for (float agreement = 0.5f; agreement < 0.99f; agreement += 0.03f) {
    shape.agreement = agreement;
    DecodeCase attention(cpu, shape);
    SetHeadDensity(attention, kHeadDensity);
    const double distance = std::abs(attention.densities().kv_union - kUnionDensity);
    if (distance < gap) {
      gap = distance;
      best = agreement;
    }
  }
  return best;
}

Json MeasureContext(int32_t context, int threads, const Limits& limits, float agreement,
                    bool quick) {
  auto cpu = Make("cpu", threads);
  CaseShape shape = Shape(2, 4, 64, DType::kFloat16, context);
  shape.agreement = agreement;
  shape.copies = quick ? std::min(Copies(shape), 4) : Copies(shape);
  DecodeCase attention(*cpu, shape);
  SetHeadDensity(attention, kHeadDensity);
  const double seconds = quick ? 0.1 : 1.0;
  const Step sparse = MeasureStep(attention, seconds, limits);
  attention.options().admit_all = true;
  const Step full = MeasureStep(attention, seconds, limits);
  const double ratio =
      (full.select.best + full.attend.best) / (sparse.select.best + sparse.attend.best);
  const double median_ratio =
      (full.select.median + full.attend.median) / (sparse.select.median + sparse.attend.median);
  return {{"full", Report("full", context, threads, full)},
          {"sparse", Report("sparse", context, threads, sparse)},
          {"speedup_best", ratio},
          {"speedup_median", median_ratio}};
}

void PrintStep(const Json& step) {
  std::printf(
      "%-6s T=%-6d threads=%d  head %.2f union %.2f  screen %7.1f us (%4.1f %%)  attend "
      "%8.1f us (median %8.1f)  %5.1f %% of %s limit\n",
      step["kind"].get<std::string>().c_str(), step["context"].get<int>(),
      step["threads"].get<int>(), step["head_density"].get<double>(),
      step["union_density"].get<double>(), step["select_best_us"].get<double>(),
      step["screening_percent_of_total"].get<double>(), step["attend_best_us"].get<double>(),
      step["attend_median_us"].get<double>(), step["attend_percent_of_limit"].get<double>(),
      step["limit"].get<std::string>().c_str());
}

int Run(const Options& options) {
  if (!CheckAll()) return 1;
  Json report;
  std::vector<int> thread_counts = {1};
  if (ReadUsableCpus().threads() > 1) thread_counts.push_back(ReadUsableCpus().threads());
  std::vector<Limits> limits;
  for (const int threads : thread_counts) {
    cpu::Workers workers(threads);
    limits.push_back(
        {ReadBandwidth(workers, threads, options.quick ? kPoolBytes / 8 : 2 * kPoolBytes),
         PeakFlops(workers, threads) / 2});
    report["limits"].push_back({{"threads", threads},
                                {"read_gb_per_s", limits.back().bytes_per_second * 1e-9},
                                {"gmac_per_s", limits.back().multiply_adds_per_second * 1e-9}});
  }
  for (const int32_t group : {8, 4, 1}) {
    report["block_from_l2"].push_back(MeasureBlock(group, limits.front()));
  }
  const float agreement =
      FindAgreement(*Make("cpu", 1), Shape(2, 4, 64, DType::kFloat16, 16384 - 17));
  for (size_t i = 0; i < thread_counts.size(); ++i) {
    for (const int32_t context : {1024, 4096, 16384, 32768}) {
      report["decode"].push_back(
          MeasureContext(context - 17, thread_counts[i], limits[i], agreement, options.quick));
    }
  }
  if (options.json) {
    std::cout << report.dump(2) << "\n";
    return 0;
  }
  std::printf("%s; outputs and counts match the reference\n",
              Make("cpu", thread_counts.back())->description().c_str());
  for (const Json& limit : report["limits"]) {
    std::printf("limits, %d threads: read %.1f GB/s, float32 %.1f GMAC/s\n",
                limit["threads"].get<int>(), limit["read_gb_per_s"].get<double>(),
                limit["gmac_per_s"].get<double>());
  }
  for (const Json& block : report["block_from_l2"]) {
    std::printf("block from L2, G=%d: %.3f us (median %.3f), %.0f %% of the FMA limit\n",
                block["group"].get<int>(), block["best_us"].get<double>(),
                block["median_us"].get<double>(), block["percent_of_compute_limit"].get<double>());
  }
  for (const Json& context : report["decode"]) {
    PrintStep(context["full"]);
    PrintStep(context["sparse"]);
    std::printf("       full / sparse, screening included: %.2f (medians %.2f)\n",
                context["speedup_best"].get<double>(), context["speedup_median"].get<double>());
  }
  return 0;
}

}  // namespace
}  // namespace eta::bench

int main(int argc, char** argv) {
  eta::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      options.json = true;
    } else if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
    } else {
      std::fprintf(stderr, "usage: attention_bench [--json] [--quick]\n");
      return 2;
    }
  }
  return eta::bench::Run(options);
}
