// Decode speed of a model on the CPU at several context lengths. Full attention and the default
// sparse one take turns step by step over the same cache, so that both meet the same machine.
//
//   build/bin/decode_bench --model=models/eta-27m --text=deploy/samples/... [--json]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"
#include "engine/model/rope_base.h"
#include "engine/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/bench/timed_backend.h"

namespace eta::bench {
namespace {

struct Options {
  std::string model_dir = "models/eta-27m";
  std::string text;
  std::string kv_dtype = "float16";
  std::string weights = "native";
  std::vector<int32_t> contexts = {1024, 4096, 16384, 32768};
  int threads = 0;
  bool amx = true;
  int32_t chunk = 512;
  int steps = 48;
  bool json = false;
};

struct StepTime {
  double step = 0.0;
  double select = 0.0;
  double attend = 0.0;
};

struct ModeResult {
  StepTime median;
  double union_density = 0.0;
  double head_density = 0.0;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << "decode_bench: " << value.status().message() << "\n";
  std::exit(2);
}

class DecodeBench {
 public:
  explicit DecodeBench(const Options& options)
      : options_(options),
        backend_(OrDie(
            MakeBackend({.name = "cpu", .num_threads = options.threads, .amx = options.amx}))) {
    const auto checkpoint = OrDie(Checkpoint::Open(options.model_dir));
    const int32_t longest = *std::max_element(options.contexts.begin(), options.contexts.end());
    context_limit_ = longest + 2 * options.steps + 1;
    model_ = OrDie(Model::Load(
        checkpoint, backend_,
        {.weights = options.weights == "int8" ? WeightFormat::kInt8 : WeightFormat::kNative,
         .max_rows = options.chunk,
         .max_context = context_limit_}));
    const KvGeometry geometry = MakeKvGeometry(model_->config(), *ParseDType(options.kv_dtype));
    const int32_t num_blocks = context_limit_ / geometry.block_size + 1;
    cache_ = OrDie(KvCache::Create(backend_, model_->config(), geometry, num_blocks));
    block_table_.resize(static_cast<size_t>(num_blocks));
    std::iota(block_table_.begin(), block_table_.end(), 0);
    const auto tokenizer = OrDie(Tokenizer::Load(checkpoint.tokenizer_files(), model_->config()));
    std::ifstream file(options.text);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    tokens_ = OrDie(tokenizer->Encode(text, true));
    if (text.empty()) {
      std::cerr << "decode_bench: --text: empty or not readable\n";
      std::exit(2);
    }
    // A text shorter than the context is repeated from its beginning.
    const size_t once = tokens_.size();
    for (size_t i = 0; tokens_.size() < static_cast<size_t>(context_limit_); ++i) {
      tokens_.push_back(tokens_[i % once]);
    }
  }

  nlohmann::json Run() {
    nlohmann::json rows = nlohmann::json::array();
    for (const int32_t context : options_.contexts) rows.push_back(At(context));
    return rows;
  }

  std::string description() const { return backend_.description(); }
  // The largest KL of decoded distributions from prefilled ones.
  double divergence() const { return divergence_; }
  size_t weight_bytes() const { return model_->weight_bytes(); }

 private:
  static AttentionOptions Full() { return {.admit_all = true}; }

  void Step(int32_t position, int32_t num_rows, RowKind kind, const AttentionOptions& attention) {
    const SequenceRows rows = {.row_begin = 0,
                               .num_rows = num_rows,
                               .position = position,
                               .kind = kind,
                               .rope_theta = RopeTheta(model_->config(), rope_context_),
                               .attention = attention,
                               .block_table = block_table_};
    const BatchView batch = {
        std::span(tokens_).subspan(static_cast<size_t>(position), static_cast<size_t>(num_rows)),
        std::span(&rows, 1)};
    const ModelConfig& c = model_->config();
    attended_.resize(static_cast<size_t>(c.num_layers * num_rows * c.num_query_heads));
    read_.resize(static_cast<size_t>(c.num_layers * num_rows * c.num_kv_heads));
    const absl::Status status = model_->Forward(
        batch, *cache_, {.tokens_attended = attended_.data(), .tokens_read = read_.data()});
    if (!status.ok()) std::abort();
    const int32_t last = num_rows - 1;
    model_->ComputeLogits({&last, 1});
  }

  std::vector<float> Logits() {
    std::vector<float> logits(static_cast<size_t>(model_->config().vocab_size));
    model_->DownloadLogits(0, logits.data());
    return logits;
  }

  // Runs before any clock. Decoding the last position with full attention must give the logits that
  // prefilling it gave. On AMX tiles that was exact to 16 bits: then the distributions must agree.
  void Check(int32_t context) {
    const std::vector<float> prefilled = Logits();
    Step(context - 1, 1, RowKind::kDecode, Full());
    const std::vector<float> decoded = Logits();
    double worst = 0.0;
    for (size_t i = 0; i < decoded.size(); ++i) {
      worst = std::max(worst, static_cast<double>(std::fabs(decoded[i] - prefilled[i])));
    }
    divergence_ = std::max(divergence_, Divergence(decoded, prefilled));
    if (!(worst < 1e-3) && !(options_.amx && divergence_ < 1e-6)) {
      std::cerr << "decode_bench: decoded logits differ from prefilled ones by " << worst << ", KL "
                << divergence_ << "\n";
      std::exit(1);
    }
  }

  // KL of the distribution of `a` from that of `b`, both logits.
  static double Divergence(const std::vector<float>& a, const std::vector<float>& b) {
    const auto log_sum = [](const std::vector<float>& logits) {
      const double most = *std::max_element(logits.begin(), logits.end());
      double sum = 0.0;
      for (const float logit : logits) sum += std::exp(logit - most);
      return most + std::log(sum);
    };
    const double sum_a = log_sum(a);
    const double sum_b = log_sum(b);
    double divergence = 0.0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double log_a = a[i] - sum_a;
      divergence += std::exp(log_a) * (log_a - (b[i] - sum_b));
    }
    return divergence;
  }

  nlohmann::json At(int32_t context) {
    // Without the steps: at 16K they would be the next step of the base, and another model.
    rope_context_ = context;
    const auto begin = std::chrono::steady_clock::now();
    for (int32_t done = 0; done < context; done += options_.chunk) {
      Step(done, std::min(options_.chunk, context - done), RowKind::kPrefill, Full());
    }
    const std::chrono::duration<double> prefill = std::chrono::steady_clock::now() - begin;
    Check(context);

    // Full and sparse take turns at every position. Sparse runs last, so it wrote what the next
    // position finds in the cache.
    std::vector<std::vector<StepTime>> times(2);
    std::vector<ModeResult> results(2);
    const AttentionOptions modes[2] = {Full(), AttentionOptions{}};
    for (int32_t i = 0; i < options_.steps; ++i) {
      for (int mode = 0; mode < 2; ++mode) {
        backend_.TakeSelectSeconds();
        backend_.TakeAttendSeconds();
        const auto start = std::chrono::steady_clock::now();
        Step(context + i, 1, RowKind::kDecode, modes[mode]);
        const std::chrono::duration<double> step = std::chrono::steady_clock::now() - start;
        times[mode].push_back(
            {step.count(), backend_.TakeSelectSeconds(), backend_.TakeAttendSeconds()});
        const double kv_len = context + i + 1;
        results[mode].head_density += Mean(attended_) / kv_len / options_.steps;
        results[mode].union_density += Mean(read_) / kv_len / options_.steps;
      }
    }
    for (int mode = 0; mode < 2; ++mode) results[mode].median = MedianOf(times[mode]);
    return Row(context, prefill.count(), results[0], results[1]);
  }

  static double Mean(const std::vector<int32_t>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }

  static StepTime MedianOf(const std::vector<StepTime>& times) {
    std::vector<double> step, select, attend;
    for (const StepTime& time : times) {
      step.push_back(time.step);
      select.push_back(time.select);
      attend.push_back(time.attend);
    }
    return {Median(step), Median(select), Median(attend)};
  }

  nlohmann::json Row(int32_t context, double prefill, const ModeResult& full,
                     const ModeResult& sparse) const {
    const ModelConfig& c = model_->config();
    const double kv_bytes = 2.0 * c.num_layers * static_cast<double>(c.kv_dim()) * context *
                            static_cast<double>(SizeOf(cache_->geometry().dtype));
    const auto mode = [&](const ModeResult& result) {
      const StepTime& time = result.median;
      const double attention = time.select + time.attend;
      return nlohmann::json{{"tokens_per_s", 1.0 / time.step},
                            {"attention_share", attention / time.step},
                            {"attention_us", attention * 1e6},
                            {"select_us", time.select * 1e6},
                            {"head_density", result.head_density},
                            {"union_density", result.union_density},
                            {"kv_gb_per_s", result.union_density * kv_bytes / time.attend / 1e9}};
    };
    const auto attention = [](const ModeResult& r) { return r.median.select + r.median.attend; };
    return {{"context", context},
            {"prefill_tokens_per_s", context / prefill},
            {"full", mode(full)},
            {"sparse", mode(sparse)},
            {"attention_speedup", attention(full) / attention(sparse)},
            {"step_speedup", full.median.step / sparse.median.step}};
  }

  Options options_;
  TimedBackend backend_;
  int32_t context_limit_ = 0;
  int64_t rope_context_ = 0;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::vector<int32_t> block_table_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> attended_;
  std::vector<int32_t> read_;
  double divergence_ = 0.0;
};

void Print(const nlohmann::json& report) {
  std::printf("%s, KV %s, weights %s; KL of decoded from prefilled at most %.1e\n\n",
              report["backend"].get<std::string>().c_str(),
              report["kv_dtype"].get<std::string>().c_str(),
              report["weights"].get<std::string>().c_str(), report["divergence"].get<double>());
  std::printf(
      "context | prefill tok/s | full: tok/s  attention  share  GB/s | sparse: tok/s  attention"
      "  share  screening  union  head | attention x  step x\n");
  for (const auto& row : report["rows"]) {
    const auto& full = row["full"];
    const auto& sparse = row["sparse"];
    std::printf(
        "%7d | %13.0f | %11.1f  %6.0f us  %4.0f%%  %4.1f | %13.1f  %6.0f us  %4.0f%%  %6.0f us"
        "  %5.3f  %5.3f | %11.2f  %6.2f\n",
        row["context"].get<int>(), row["prefill_tokens_per_s"].get<double>(),
        full["tokens_per_s"].get<double>(), full["attention_us"].get<double>(),
        100 * full["attention_share"].get<double>(), full["kv_gb_per_s"].get<double>(),
        sparse["tokens_per_s"].get<double>(), sparse["attention_us"].get<double>(),
        100 * sparse["attention_share"].get<double>(), sparse["select_us"].get<double>(),
        sparse["union_density"].get<double>(), sparse["head_density"].get<double>(),
        row["attention_speedup"].get<double>(), row["step_speedup"].get<double>());
  }
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Decode speed by context length: full attention against sparse");
  app.add_option("--model", options.model_dir, "Checkpoint folder")->capture_default_str();
  app.add_option("--text", options.text, "Text to read as context")->required();
  app.add_option("--kv_dtype", options.kv_dtype)
      ->check(CLI::IsMember({"float32", "float16", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--weights", options.weights)
      ->check(CLI::IsMember({"native", "int8"}))
      ->capture_default_str();
  app.add_option("--context", options.contexts, "Context lengths, in tokens")
      ->delimiter(',')
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "0: one per core")->capture_default_str();
  app.add_flag("--amx,!--no-amx", options.amx, "Prefill uses AMX where the machine has it");
  app.add_option("--chunk", options.chunk, "Tokens of a prefill step")
      ->check(CLI::Range(1, 1 << 14))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Decode steps of each mode")
      ->check(CLI::Range(3, 10000))
      ->capture_default_str();
  app.add_flag("--json", options.json);
  CLI11_PARSE(app, argc, argv);

  DecodeBench bench(options);
  const nlohmann::json rows = bench.Run();
  const nlohmann::json report = {
      {"backend", bench.description()},   {"kv_dtype", options.kv_dtype},
      {"weights", options.weights},       {"weight_bytes", bench.weight_bytes()},
      {"divergence", bench.divergence()}, {"rows", rows}};
  if (options.json) {
    std::cout << report.dump(2) << "\n";
  } else {
    Print(report);
  }
  return 0;
}

}  // namespace
}  // namespace eta::bench

int main(int argc, char** argv) {
  return eta::bench::Main(argc, argv);
}
