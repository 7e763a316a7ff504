// Attention time of a prompt at several lengths, full and sparse. The two take turns prompt by
// prompt over the same cache, so that both meet the same machine. On a GPU, which times steps as
// wholes, attention is what steps take less without it.
//
//   build/bin/prefill_bench --model=models/eta-27m --text=FILE.txt [--json]
#include <algorithm>
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
#include "engine/request/request_validation.h"
#include "engine/request/tempered_keys.h"
#include "engine/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/bench/timed_backend.h"

namespace eta::bench {
namespace {

struct Options {
  std::string model_dir = "models/eta-27m";
  std::string text;
  std::string kv_dtype = "float16";
  std::string backend = "cpu";
  std::string reads;
  std::vector<int32_t> lengths = {2048, 8192, 16384};
  int threads = 0;
  bool amx = true;
  int32_t chunk = 256;
  int times = 3;
  bool json = false;
};

struct PromptTime {
  double select = 0.0;
  double attend = 0.0;
  double density = 1.0;

  double attention() const { return select + attend; }
};

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << "prefill_bench: " << value.status().message() << "\n";
  std::exit(2);
}

PromptTime Median(std::vector<PromptTime> times) {
  std::ranges::sort(times, {}, &PromptTime::attention);
  return times[times.size() / 2];
}

class PrefillBench {
 public:
  explicit PrefillBench(const Options& options)
      : options_(options),
        backend_(OrDie(MakeBackend(
            {.name = options.backend, .num_threads = options.threads, .amx = options.amx}))) {
    const auto checkpoint = OrDie(Checkpoint::Open(options.model_dir));
    const int32_t longest = *std::ranges::max_element(options.lengths);
    model_ = OrDie(
        Model::Load(checkpoint, backend_, {.max_rows = options.chunk, .max_context = longest + 1}));
    const KvGeometry geometry = MakeKvGeometry(model_->config(), *ParseDType(options.kv_dtype));
    const int32_t num_blocks = longest / geometry.block_size + 1;
    cache_ = OrDie(KvCache::Create(backend_, model_->config(), geometry, num_blocks));
    block_table_.resize(static_cast<size_t>(num_blocks));
    std::iota(block_table_.begin(), block_table_.end(), 0);
    const auto tokenizer = OrDie(Tokenizer::Load(checkpoint.tokenizer_files(), model_->config()));
    std::ifstream file(options.text);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    tokens_ = OrDie(tokenizer->Encode(text, true));
    if (tokens_.size() < static_cast<size_t>(longest)) {
      std::cerr << "prefill_bench: --text: has " << tokens_.size() << " tokens\n";
      std::exit(2);
    }
    AttentionChoice choice = {.mode = AttentionMode::kDynamic,
                              .settings = {.sparse_prefill = true}};
    if (!options.reads.empty()) choice.settings.shared_reads = options.reads == "shared";
    attention_ = ResolveAttention(choice, model_->config());
    if (attention_.temper_special) {
      tempered_ = TemperedKeys(tokenizer->special_ids(), longest);
      tempered_.Append(tokens_);
    }
  }

  std::string description() const { return backend_.description(); }

  nlohmann::json Run() {
    nlohmann::json rows = nlohmann::json::array();
    for (const int32_t length : options_.lengths) {
      std::vector<PromptTime> full;
      std::vector<PromptTime> sparse;
      for (int i = 0; i < options_.times; ++i) {
        full.push_back(Measure(length, false));
        sparse.push_back(Measure(length, true));
      }
      const PromptTime of_full = Median(full);
      const PromptTime of_sparse = Median(sparse);
      rows.push_back({{"tokens", length},
                      {"full_seconds", of_full.attention()},
                      {"sparse_seconds", of_sparse.attention()},
                      {"select_seconds", of_sparse.select},
                      {"density", of_sparse.density},
                      {"speedup", of_full.attention() / of_sparse.attention()}});
    }
    return rows;
  }

 private:
  PromptTime Measure(int32_t length, bool sparse) {
    const PromptTime of_ops = Prompt(length, sparse);
    if (!backend_.defers()) return of_ops;
    const double whole = step_seconds_;
    backend_.LeavePrefillOut(false, true);
    Prompt(length, sparse);
    const double selected = step_seconds_;
    backend_.LeavePrefillOut(true, true);
    Prompt(length, sparse);
    backend_.LeavePrefillOut(false, false);
    return {selected - step_seconds_, whole - selected, of_ops.density};
  }

  PromptTime Prompt(int32_t length, bool sparse) {
    step_seconds_ = 0.0;
    const ModelConfig& c = model_->config();
    const auto heads = static_cast<size_t>(c.num_query_heads);
    const auto layers = static_cast<size_t>(c.num_layers);
    double density = 0.0;
    for (int32_t begin = 0; begin < length; begin += options_.chunk) {
      const int32_t count = std::min(options_.chunk, length - begin);
      SequenceRows rows = {.num_rows = count,
                           .position = begin,
                           .kind = RowKind::kPrefill,
                           .rope_theta = RopeTheta(c, length)};
      attention_.ApplyTo(rows);
      rows.attention.sparse_prefill = sparse;
      rows.tempered = tempered_.words();
      rows.block_table = block_table_;
      const BatchView batch = {
          std::span(tokens_).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
          std::span(&rows, 1)};
      attended_.resize(layers * static_cast<size_t>(count) * heads);
      read_.resize(attended_.size());
      const absl::Status status = model_->Forward(batch, *cache_,
                                                  {.tokens_attended = attended_.data(),
                                                   .tokens_read = read_.data(),
                                                   .values_read = read_.data()});
      if (!status.ok() || !model_->Finish().ok()) std::abort();
      step_seconds_ += backend_.last_step_seconds().value_or(0.0);
      for (size_t i = 0; sparse && i < attended_.size(); ++i) {
        const auto row = static_cast<int32_t>(i / heads % static_cast<size_t>(count));
        density += static_cast<double>(attended_[i]) / (begin + row + 1);
      }
    }
    return {backend_.TakePrefillSelectSeconds(), backend_.TakePrefillAttendSeconds(),
            sparse ? density / static_cast<double>(layers * heads) / length : 1.0};
  }

  Options options_;
  TimedBackend backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::vector<int32_t> block_table_;
  std::vector<int32_t> tokens_;
  ResolvedAttention attention_;
  TemperedKeys tempered_;
  std::vector<int32_t> attended_;  // [L, R, HQ]
  std::vector<int32_t> read_;
  double step_seconds_ = 0.0;  // of the last prompt, by the device
};

void Print(const nlohmann::json& report) {
  std::printf("%s\n%8s %10s %10s %10s %8s %8s\n", report["description"].get<std::string>().c_str(),
              "tokens", "full s", "sparse s", "select s", "density", "speedup");
  for (const nlohmann::json& row : report["rows"]) {
    std::printf("%8d %10.4f %10.4f %10.4f %8.4f %8.2f\n", row["tokens"].get<int>(),
                row["full_seconds"].get<double>(), row["sparse_seconds"].get<double>(),
                row["select_seconds"].get<double>(), row["density"].get<double>(),
                row["speedup"].get<double>());
  }
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Attention time of prompts, full and sparse");
  app.add_option("--model", options.model_dir)->capture_default_str();
  app.add_option("--text", options.text, "A plain text that is long enough")->required();
  app.add_option("--kv_dtype", options.kv_dtype)
      ->check(CLI::IsMember({"float32", "float16", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--backend", options.backend)
      ->check(CLI::IsMember(BackendNames()))
      ->capture_default_str();
  app.add_option("--reads", options.reads, "The model's, if not given")
      ->check(CLI::IsMember({"own", "shared"}));
  app.add_option("--lengths", options.lengths)->delimiter(',')->check(CLI::Range(64, 1 << 20));
  app.add_option("--threads", options.threads)->check(CLI::Range(0, 1024))->capture_default_str();
  app.add_flag("--amx,!--no-amx", options.amx);
  app.add_option("--chunk", options.chunk, "Rows of a step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--times", options.times, "Prompts of each kind; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--json", options.json);
  CLI11_PARSE(app, argc, argv);
  PrefillBench bench(options);
  const nlohmann::json report = {{"description", bench.description()}, {"rows", bench.Run()}};
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
