#include "calibration/evaluation/tables/table_bench.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/attention/attention_resolution.h"
#include "calibration/evaluation/text/windows.h"
#include "calibration/solvers/sample_split.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_fingerprint.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

constexpr const char* kTexts[] = {"wikitext2.txt.xz", "wiki.jsonl.xz", "books.jsonl.xz",
                                  "code.jsonl.xz", "legal.jsonl.xz"};
// Of a text that windows are spread over.
constexpr size_t kMostTextTokens = size_t{1} << 22;

std::string NameOf(const std::string& path) {
  std::string name = std::filesystem::path(path).filename().string();
  return name.substr(0, name.find('.'));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TableBench>> TableBench::Load(const RuntimeOptions& runtime,
                                                             const TableSettings& settings) {
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> loaded, Runtime::Load(runtime));
  if (loaded->config().sinks) {
    return absl::UnimplementedError(
        "tables measure a softmax without learned sinks, which this model has");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Load(loaded->checkpoint().tokenizer_files(), loaded->config()));
  std::unique_ptr<TableBench> bench(new TableBench());
  bench->options_ = runtime;
  bench->settings_ = settings;
  bench->runtime_ = std::move(loaded);
  bench->tokenizer_ = std::move(tokenizer);
  return bench;
}

absl::StatusOr<std::unique_ptr<TableBench>> TableBench::LoadForm(const std::string& form) const {
  RuntimeOptions options = options_;
  const auto format = ParseWeightFormat(form);
  options.weights = format.value_or(WeightFormat::kNative);
  if (!format) options.model_dir = form;
  return Load(options, settings_);
}

int32_t TableBench::Samples(int32_t whole, int32_t small) const {
  if (settings_.samples > 0) return settings_.samples;
  return quick() ? small : whole;
}

int32_t TableBench::Questions(int32_t whole, int32_t small) const {
  if (settings_.questions > 0) return settings_.questions;
  return quick() ? small : whole;
}

int32_t TableBench::Context(int32_t whole, int32_t small) const {
  const int32_t wanted = settings_.context > 0 ? settings_.context : (quick() ? small : whole);
  const int32_t window = config().sliding_window;
  return std::min({wanted, config().max_context, window > 0 ? window : wanted});
}

KvGeometry TableBench::Geometry(std::optional<int32_t> block_size,
                                std::optional<IndexKind> index) const {
  ModelConfig config = runtime_->config();
  config.block_size = block_size.value_or(config.block_size);
  config.index = index.value_or(config.index);
  // Types of records are the user's for the model's own kind.
  return MakeKvGeometry(config, options_.kv_dtype, index ? std::nullopt : options_.index_dtype);
}

absl::StatusOr<std::unique_ptr<SequenceRunner>> TableBench::MakeRunner(const KvGeometry& geometry,
                                                                       int32_t context,
                                                                       Backend* around) {
  return runtime_->MakeRunner(geometry, context, around);
}

absl::StatusOr<EvaluatedAttention> TableBench::Attention(const std::string& name,
                                                         const KvGeometry& geometry) {
  return ResolveEvaluated(name, {}, *runtime_, geometry);
}

std::vector<BenchText> TableBench::Texts() const {
  std::vector<BenchText> texts;
  for (const std::string& path : settings_.texts) texts.push_back({NameOf(path), path});
  if (!texts.empty()) return texts;
  for (const char* name : kTexts) texts.push_back({NameOf(name), settings_.data + "/" + name});
  return texts;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> TableBench::Windows(const BenchText& text,
                                                                      int32_t context,
                                                                      int32_t windows) const {
  ASSIGN_OR_RETURN(std::unique_ptr<TextSource> source, TextSource::Open(text.path));
  ASSIGN_OR_RETURN(std::vector<std::vector<int32_t>> all,
                   ReadWindows(*source, *tokenizer_, context, /*max_windows=*/0, kMostTextTokens));
  return KeepSpread(std::move(all), windows);
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> TableBench::Provenance() {
  constexpr size_t kDigits = 12;  // as servers and etactl show it
  const Checkpoint& checkpoint = runtime_->checkpoint();
  ASSIGN_OR_RETURN(const auto read, ParseModelConfig(checkpoint.config_json()));  // without flags
  ASSIGN_OR_RETURN(const std::string model, ModelFingerprint(read, checkpoint));
  const auto own = Attention("dynamic", Geometry());
  std::string defaults = "none with this index";
  if (own.ok()) {
    const std::string c =
        own->options.relative ? absl::StrFormat("c %.1f, ", own->options.relative_c) : "";
    defaults =
        absl::StrCat(c, Describe(UsedSettings(*own)), ", block_size ", own->geometry.block_size,
                     ", index ", std::string(Name(own->geometry.index)));
  }
  return {{{"model", model.substr(0, kDigits)}, {"defaults", std::move(defaults)}}};
}

}  // namespace eta
