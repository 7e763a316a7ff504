// eta-bench text: what a checkpoint takes to read a text and to go on with it. Prompts and decode
// steps, each with full and with sparse attention in turns over one cache, so that both meet the
// same machine. Decoding the last position must give the logits that prefilling it gave.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"
#include "engine/model/rope/rope_base.h"
#include "engine/request/request_validation.h"
#include "engine/request/tempered_keys.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/bench/eta_bench/eta_bench.h"
#include "tests/bench/eta_bench/timed_backend.h"

namespace eta::bench {
namespace {

struct Options {
  DeviceFlags device{.samples = 3};
  std::string model = "models/eta-27m";
  std::string text;
  std::string kv_dtype = "float16";
  std::string weights = "native";
  std::string reads;  // empty: as the model says
  std::vector<int32_t> context = {2048, 8192, 16384};
  int32_t chunk = 256;
  int steps = 48;
};

struct Cost {
  double seconds = 0.0;  // of everything
  double select = 0.0;
  double attend = 0.0;
  double head_density = 1.0;
  double union_density = 1.0;

  double attention() const { return select + attend; }
};

// The median of each time, and the mean of each density.
Cost Summary(const std::vector<Cost>& costs) {
  const auto median = [&](double Cost::*field) {
    std::vector<double> values;
    for (const Cost& cost : costs) values.push_back(cost.*field);
    return Median(values);
  };
  const auto mean = [&](double Cost::*field) {
    double sum = 0.0;
    for (const Cost& cost : costs) sum += cost.*field;
    return sum / static_cast<double>(costs.size());
  };
  return {median(&Cost::seconds), median(&Cost::select), median(&Cost::attend),
          mean(&Cost::head_density), mean(&Cost::union_density)};
}

// KL of the distribution of `a` from that of `b`, both logits.
double Divergence(const std::vector<float>& a, const std::vector<float>& b) {
  const auto log_sum = [](const std::vector<float>& logits) {
    const double most = *std::ranges::max_element(logits);
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

class Reader {
 public:
  explicit Reader(const Options& options)
      : options_(options), backend_(OpenBackend(options.device)) {
    const auto checkpoint = Require(Checkpoint::Open(options.model));
    const int32_t most = *std::ranges::max_element(options.context) + options.steps + 1;
    model_ = Require(
        Model::Load(checkpoint, backend_,
                    {.weights = ParseWeightFormat(options.weights).value_or(WeightFormat::kNative),
                     .max_rows = options.chunk,
                     .max_context = most}));
    const KvGeometry geometry = MakeKvGeometry(config(), *ParseDType(options.kv_dtype));
    block_table_.resize(static_cast<size_t>(most / geometry.block_size + 1));
    std::iota(block_table_.begin(), block_table_.end(), 0);
    cache_ = Require(
        KvCache::Create(backend_, config(), geometry, static_cast<int32_t>(block_table_.size())));
    const auto tokenizer = Require(Tokenizer::Load(checkpoint.tokenizer_files(), config()));
    tokens_ = Require(tokenizer->Encode(ReadText(options.text), true));
    // A text that is shorter than the context is repeated from its beginning.
    const size_t once = tokens_.size();
    for (size_t i = 0; tokens_.size() < static_cast<size_t>(most); ++i) {
      tokens_.push_back(tokens_[i % once]);
    }
    AttentionChoice choice = {.mode = AttentionMode::kDynamic,
                              .settings = {.sparse_prefill = true}};
    if (!options.reads.empty()) choice.settings.shared_reads = options.reads == "shared";
    attention_ = ResolveAttention(choice, config());
    if (attention_.temper_special) {
      tempered_ = TemperedKeys(tokenizer->special_ids(), most);
      tempered_.Append(tokens_);
    }
  }

  const Backend& backend() const { return backend_; }
  size_t weight_bytes() const { return model_->weight_bytes(); }

  Json Prompts(int32_t context) {
    context_ = context;
    std::vector<Cost> full, sparse;
    for (int i = 0; i < options_.device.samples; ++i) {
      sparse.push_back(MeasurePrompt(true));
      full.push_back(MeasurePrompt(false));  // the last one: the cache that decoding goes on with
    }
    const Cost of_full = Summary(full);
    const Cost of_sparse = Summary(sparse);
    const ModelConfig& c = config();
    const double t = context;
    double weights =
        2.0 * c.num_layers * c.model_dim * static_cast<double>(c.query_dim() + c.kv_dim());
    for (int32_t layer = 0; layer < c.num_layers; ++layer) {
      const double width =
          c.HasExperts(layer) ? 1.0 * c.experts_per_token * c.expert_ffn_dim : c.ffn_dim;
      weights += 3.0 * c.model_dim * width;
    }
    const double attention_flop =
        2.0 * c.num_layers * t * (t + 1) * static_cast<double>(c.query_dim());
    const double flop = 2.0 * t * weights + attention_flop;
    return {{"tokens", context},
            {"tokens_per_s", t / of_full.seconds},
            {"gflops", flop / of_full.seconds * 1e-9},
            {"full_seconds", of_full.attention()},
            {"attention_gflops", attention_flop / of_full.attention() * 1e-9},
            {"sparse_seconds", of_sparse.attention()},
            {"select_seconds", of_sparse.select},
            {"density", of_sparse.head_density},
            {"divergence", CheckDecoding()},
            {"speedup", of_full.attention() / of_sparse.attention()}};
  }

  // After Prompts() of the same context.
  Json Decode() {
    // Sparse runs last, so it wrote what the next position finds in the cache.
    std::vector<Cost> full, sparse;
    for (int32_t i = 0; i < options_.steps; ++i) {
      full.push_back(DecodeStep(context_ + i, true));
      sparse.push_back(DecodeStep(context_ + i, false));
    }
    const Cost of_full = Summary(full);
    const Cost of_sparse = Summary(sparse);
    Json row = {{"context", context_},
                {"full", Mode(of_full)},
                {"sparse", Mode(of_sparse)},
                {"attention_speedup", nullptr},
                {"step_speedup", of_full.seconds / of_sparse.seconds}};
    if (!backend_.defers()) {
      row["attention_speedup"] = of_full.attention() / of_sparse.attention();
    }
    return row;
  }

 private:
  const ModelConfig& config() const { return model_->config(); }

  // Runs one step of `count` rows from `position` on. Returns its seconds.
  double Step(int32_t position, int32_t count, RowKind kind, const AttentionOptions& attention) {
    // The base of the prompt's length: at 16K a step more would be the next one, another model.
    SequenceRows rows = {.num_rows = count,
                         .position = position,
                         .kind = kind,
                         .rope_theta = RopeTheta(config(), context_)};
    attention_.ApplyTo(rows);
    rows.attention = attention;
    rows.tempered = tempered_.words();
    rows.block_table = block_table_;
    const BatchView batch = {
        std::span(tokens_).subspan(static_cast<size_t>(position), static_cast<size_t>(count)),
        std::span(&rows, 1)};
    const auto layer_rows = static_cast<size_t>(config().num_layers * count);
    attended_.resize(layer_rows * static_cast<size_t>(config().num_query_heads));
    read_.resize(layer_rows * static_cast<size_t>(config().num_kv_heads));
    values_read_.resize(read_.size());
    const Stopwatch watch;
    RequireOk(model_->Forward(batch, *cache_,
                              {.tokens_attended = attended_.data(),
                               .tokens_read = read_.data(),
                               .values_read = values_read_.data()}));
    if (kind == RowKind::kDecode || position + count == context_) {
      const int32_t last = count - 1;
      model_->ComputeLogits({&last, 1});
    }
    RequireOk(model_->Finish());
    return backend_.last_step_seconds().value_or(watch.seconds());
  }

  // Where a backend times steps as wholes, an op is what steps take less without it.
  Cost MeasurePrompt(bool sparse) {
    if (!backend_.defers()) return Prompt(sparse);
    backend_.LeavePrefillOut(true, true);
    const double neither = Prompt(sparse).seconds;
    backend_.LeavePrefillOut(false, true);
    const double selected = Prompt(sparse).seconds;
    backend_.LeavePrefillOut(false, false);
    Cost cost = Prompt(sparse);
    cost.select = selected - neither;
    cost.attend = cost.seconds - selected;
    return cost;
  }

  Cost Prompt(bool sparse) {
    AttentionOptions attention = attention_.options;
    attention.sparse_prefill = sparse;
    const auto heads = static_cast<size_t>(config().num_query_heads);
    Cost cost;
    double density = 0.0;
    for (int32_t begin = 0; begin < context_; begin += options_.chunk) {
      const int32_t count = std::min(options_.chunk, context_ - begin);
      cost.seconds += Step(begin, count, RowKind::kPrefill, attention);
      for (size_t i = 0; sparse && i < attended_.size(); ++i) {
        const auto row = static_cast<int32_t>(i / heads % static_cast<size_t>(count));
        density += static_cast<double>(attended_[i]) / (begin + row + 1);
      }
    }
    if (sparse) {
      cost.head_density = density / static_cast<double>(heads) / config().num_layers / context_;
    }
    cost.select = backend_.TakePrefillSelectSeconds();
    cost.attend = backend_.TakePrefillAttendSeconds();
    return cost;
  }

  Cost DecodeStep(int32_t position, bool full) {
    AttentionOptions attention = attention_.options;
    attention.admit_all = full;
    backend_.TakeSelectSeconds();
    backend_.TakeAttendSeconds();
    const double seconds = Step(position, 1, RowKind::kDecode, attention);
    const auto density = [&](const std::vector<int32_t>& counts) {
      return std::accumulate(counts.begin(), counts.end(), 0.0) /
             static_cast<double>(counts.size()) / (position + 1);
    };
    return {seconds, backend_.TakeSelectSeconds(), backend_.TakeAttendSeconds(), density(attended_),
            density(read_)};
  }

  std::vector<float> Logits() {
    std::vector<float> logits(static_cast<size_t>(config().vocab_size));
    model_->DownloadLogits(0, logits.data());
    return logits;
  }

  // Fails if decoding the prompt's last position with full attention gives other logits than
  // prefilling it did. Returns the divergence of the two distributions. Float32 gives the same
  // logits but for rounding; on AMX tiles, exact to 16 bits, the distributions must agree.
  double CheckDecoding() {
    const std::vector<float> prefilled = Logits();
    DecodeStep(context_ - 1, true);
    const std::vector<float> decoded = Logits();
    double worst = 0.0;
    double error = 0.0;
    double square = 0.0;
    for (size_t i = 0; i < decoded.size(); ++i) {
      const double apart = std::abs(static_cast<double>(decoded[i]) - prefilled[i]);
      worst = std::max(worst, apart);
      error += apart * apart;
      square += static_cast<double>(prefilled[i]) * prefilled[i];
    }
    const double divergence = Divergence(decoded, prefilled);
    const bool agrees = backend_.activation_dtype() == DType::kFloat32
                            ? worst < 1e-3 || (options_.device.amx && divergence < 1e-6)
                            : std::sqrt(error / square) < 2e-2;
    if (!agrees) {
      Fail(absl::StrCat("decoded logits differ from prefilled ones by ", worst, ", KL ",
                        divergence));
    }
    return divergence;
  }

  Json Mode(const Cost& cost) const {
    Json row = {{"tokens_per_s", 1.0 / cost.seconds},
                {"head_density", cost.head_density},
                {"union_density", cost.union_density}};
    if (backend_.defers()) return row;
    const double kv_bytes = 2.0 * config().num_layers * static_cast<double>(config().kv_dim()) *
                            context_ * static_cast<double>(SizeOf(cache_->geometry().dtype));
    row["attention_share"] = cost.attention() / cost.seconds;
    row["attention_us"] = cost.attention() * 1e6;
    row["select_us"] = cost.select * 1e6;
    row["kv_gb_per_s"] = cost.union_density * kv_bytes / cost.attend * 1e-9;
    return row;
  }

  const Options& options_;
  TimedBackend backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::vector<int32_t> block_table_;
  std::vector<int32_t> tokens_;
  ResolvedAttention attention_;
  TemperedKeys tempered_;
  int32_t context_ = 0;                      // of the prompt that is measured
  std::vector<int32_t> attended_;            // [L, R, HQ]
  std::vector<int32_t> read_, values_read_;  // [L, R, HKV]
};

Json Run(const Options& options) {
  const double bandwidth = MeasureReadBandwidth(options.device);
  Reader reader(options);
  Json report = BeginReport("text", options.device, reader.backend(), bandwidth);
  report["peak_gflops"] = MeasurePeakFlops(options.device) * 1e-9;
  report["kv_dtype"] = options.kv_dtype;
  report["weights"] = options.weights;
  report["weight_bytes"] = reader.weight_bytes();
  report["prompts"] = Json::array();
  report["decode"] = Json::array();
  for (const int32_t context : options.context) {
    report["prompts"].push_back(reader.Prompts(context));
    if (options.steps > 0) report["decode"].push_back(reader.Decode());
  }
  return report;
}

void Print(const Json& report) {
  std::printf("%s, KV %s, weights %s; decoded as prefilled\n\n",
              report["description"].get<std::string>().c_str(),
              report["kv_dtype"].get<std::string>().c_str(),
              report["weights"].get<std::string>().c_str());
  PrintTable(report["prompts"], {{"prompt", "tokens"},
                                 {"tokens/s", "tokens_per_s"},
                                 {"GFLOP/s", "gflops"},
                                 {"attention: full s", "full_seconds", 4},
                                 {"GFLOP/s", "attention_gflops"},
                                 {"sparse s", "sparse_seconds", 4},
                                 {"of it selection", "select_seconds", 4},
                                 {"density", "density", 3},
                                 {"x full", "speedup", 2},
                                 {"KL x 1e9", "divergence", 3, 1e9}});
  for (const char* mode : {"full", "sparse"}) {
    Json rows = Json::array();
    for (const Json& row : report["decode"]) {
      Json one = row[mode];
      one["context"] = row["context"];
      if (mode == std::string_view("sparse")) {
        one["attention_speedup"] = row["attention_speedup"];
        one["step_speedup"] = row["step_speedup"];
      }
      rows.push_back(std::move(one));
    }
    if (rows.empty()) continue;
    std::printf("\n%s\n", mode);
    PrintTable(rows, {{"context", "context"},
                      {"tokens/s", "tokens_per_s", 1},
                      {"attention us", "attention_us"},
                      {"of the step %", "attention_share", 0, 100.0},
                      {"screening us", "select_us"},
                      {"union", "union_density", 3},
                      {"head", "head_density", 3},
                      {"GB/s", "kv_gb_per_s", 1},
                      {"attention x full", "attention_speedup", 2},
                      {"step x full", "step_speedup", 2}});
  }
}

}  // namespace

void AddTextCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("text", "A checkpoint's prompts and decode steps, full and sparse");
  AddDeviceFlags(*command, options->device);
  command->add_option("--model", options->model, "Folder of the checkpoint")->capture_default_str();
  command->add_option("--text", options->text, "A plain text; a short one is repeated")->required();
  command->add_option("--kv_dtype", options->kv_dtype)
      ->check(CLI::IsMember({"float32", "float16", "bfloat16"}))
      ->capture_default_str();
  command->add_option("--weights", options->weights)
      ->check(CLI::IsMember({"native", "int8", "int4"}))
      ->capture_default_str();
  command->add_option("--reads", options->reads, "The model's, if not given")
      ->check(CLI::IsMember({"own", "shared"}));
  command->add_option("--context", options->context, "Lengths of prompts, in tokens")
      ->delimiter(',')
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "Rows of a prompt's step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--steps", options->steps, "Decode steps of each kind; 0: prompts only")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
