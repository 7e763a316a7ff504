// A thousand decode steps of a small model on a GPU, with sequences joining and leaving and
// profiles changing: replayed as graphs they give what plain launches give, to the last bit, and
// the CPU's tokens.
//
// A graph is replayed where the ops of a step are those of an earlier one. So an extra op that is
// different in every step makes the same backend launch all of them plainly.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"
#include "kernels/backends/make_backend.h"
#include "kernels/params/layer.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

constexpr int32_t kMaxRunning = 40;
constexpr int32_t kMaxPrompt = 150;
constexpr int32_t kMaxLife = 150;  // decode steps of a sequence
constexpr int32_t kMaxRows = 512;

// ETA_CUDA_STEPS, where a tool makes a thousand take too long.
int DecodeSteps() {
  const char* text = std::getenv("ETA_CUDA_STEPS");
  return text != nullptr ? std::atoi(text) : 1000;
}

struct Sequence {
  int32_t id = 0;
  std::vector<int32_t> prompt;
  int32_t life = 0;
  SequenceRows rows;
  std::vector<int32_t> blocks;
  std::vector<uint64_t> tempered;
  bool greedy = true;
};

// What a step shows of one sequence, by the sequence's id.
struct Seen {
  int32_t token = -1;
  std::vector<int32_t> counts;  // tokens attended and read, all layers
  bool operator==(const Seen&) const = default;
};

struct Step {
  bool decode_only = false;
  int32_t num_rows = 0;
  std::map<int32_t, Seen> seen;
};

enum class Launch { kReplayed, kPlain };
// Whether sequences have what came after the paper: sink blocks, shared reads, tempered keys, and
// without a gate relative thresholds and records of kind outlier.
enum class Options { kPaper, kAll };

// How far a token that was forced is below the most likely one.
struct Judgement {
  double below = 0.0;
  bool greedy = true;
};

class Decoding {
 public:
  Decoding(const Checkpoint& checkpoint, Backend& backend, Options options = Options::kPaper)
      : backend_(backend), options_(options) {
    auto model = Model::Load(checkpoint, backend,
                             {.max_rows = kMaxRows, .max_context = kMaxPrompt + kMaxLife + 1});
    EXPECT_EQ(model.status(), absl::OkStatus());
    model_ = *std::move(model);
    extra_ = *backend.Allocate(4096);
    const std::vector<float> ones(1024, 1.0f);
    backend.Upload(extra_->data(), ones.data(), 4096);
  }

  // The steps from an empty cache on. With `forced`, its tokens are taken instead of drawn ones,
  // and `judgements` gets how likely they were.
  std::vector<Step> Steps(Launch launch, const std::vector<Step>* forced = nullptr,
                          std::vector<Judgement>* judgements = nullptr) {
    Begin();
    std::vector<Step> steps;
    for (int decoded = 0; decoded < DecodeSteps();) {
      const Step* known = forced != nullptr ? &(*forced)[steps.size()] : nullptr;
      steps.push_back(Next(launch, steps.size(), known, judgements));
      decoded += steps.back().decode_only ? 1 : 0;
    }
    return steps;
  }

  int32_t num_layers() const { return config().num_layers; }

 private:
  const ModelConfig& config() const { return model_->config(); }
  bool HasRelative() const { return options_ == Options::kAll && config().gate == Gate::kNone; }

  void Begin() {
    random_ = Random(7);
    running_.clear();
    next_id_ = 0;
    const int32_t b = config().block_size;
    const int32_t num_blocks = kMaxRunning * ((kMaxPrompt + kMaxLife) / b + 1);
    cache_.reset();
    KvGeometry geometry = MakeKvGeometry(config(), DType::kFloat16);
    if (HasRelative()) {
      geometry.index = IndexKind::kOutlier;
      geometry.index_dtype = DType::kInt8;
    }
    auto cache = KvCache::Create(backend_, config(), geometry, num_blocks);
    EXPECT_EQ(cache.status(), absl::OkStatus());
    cache_ = *std::move(cache);
    free_.clear();
    for (int32_t block = 0; block < num_blocks; ++block) free_.push_back(block);
    std::shuffle(free_.begin(), free_.end(), random_);
    profiles_.clear();
    widths_.clear();
    for (int i = 0; i < 2; ++i) {
      profiles_.push_back(Thresholds(random_));
      widths_.push_back(Widths(random_));
    }
  }

  Sequence Join() {
    Sequence sequence;
    sequence.id = next_id_++;
    sequence.prompt.resize(static_cast<size_t>(Uniform(random_, 1, kMaxPrompt)));
    for (int32_t& token : sequence.prompt) {
      token = static_cast<int32_t>(Uniform(random_, 300, config().vocab_size - 1));
    }
    sequence.life = static_cast<int32_t>(Uniform(random_, 5, kMaxLife));
    sequence.greedy = Uniform(random_, 0, 2) > 0;
    const auto keys = static_cast<int32_t>(sequence.prompt.size()) + sequence.life;
    for (int32_t i = 0; i <= keys / config().block_size; ++i) {
      sequence.blocks.push_back(free_.back());
      free_.pop_back();
    }
    const auto profile = Uniform(random_, 0, 3);
    sequence.rows = {
        .rope_theta = config().rope_theta,
        .attention = {.offset = Uniform(random_, 0, 1) == 0 ? 0.0f : -0.5f,
                      .pinned_blocks = static_cast<int32_t>(Uniform(random_, 0, 2)),
                      .uniform_floor = Uniform(random_, 0, 1) == 0 && config().gate != Gate::kNone,
                      .admit_all = Uniform(random_, 0, 5) == 0},
        .frozen_thresholds =
            profile < 2 ? profiles_[static_cast<size_t>(profile)].data.data() : nullptr};
    if (options_ == Options::kAll) {
      AttentionOptions& attention = sequence.rows.attention;
      attention.sink_blocks = static_cast<int32_t>(Uniform(random_, 0, 2));
      attention.shared_reads = Uniform(random_, 0, 1) == 0;
      attention.relative = HasRelative() && Uniform(random_, 0, 2) > 0;
      attention.relative_c = static_cast<float>(UniformReal(random_, -4.0, -1.0));
      for (int32_t i = 0; i <= keys / 64 && Uniform(random_, 0, 2) > 0; ++i) {
        sequence.tempered.push_back(random_() & random_());
      }
    }
    const auto widths = Uniform(random_, 0, 2);
    if (widths < 2) sequence.rows.head_z = widths_[static_cast<size_t>(widths)].data.data();
    return sequence;
  }

  // Another profile may come to stand where one was: what a step has sent must not outlive it.
  void ExchangeProfiles(size_t number) {
    Random random(number);
    std::ranges::copy(Thresholds(random).data, profiles_[0].data.begin());
    std::ranges::copy(Widths(random).data, widths_[0].data.begin());
  }

  HostTensor Thresholds(Random& random) const {
    return Normal(random, 1, int64_t{config().num_layers} * config().num_query_heads, 0.5f);
  }
  HostTensor Widths(Random& random) const {
    HostTensor widths = Thresholds(random);
    for (float& z : widths.data) z = 4.0f * std::abs(z);
    return widths;
  }

  // Some leave at the end of their life; the number that should be running rises and falls.
  Step Next(Launch launch, size_t number, const Step* known, std::vector<Judgement>* judgements) {
    if (number % 3 == 2) ExchangeProfiles(number);
    const auto wave = static_cast<int32_t>(number % 200);
    const int32_t wanted = 1 + (wave < 100 ? wave : 200 - wave) * (kMaxRunning - 1) / 100;
    std::vector<Sequence*> taking_part;
    std::vector<Sequence> joining;
    const auto running = static_cast<int32_t>(running_.size());
    for (int32_t i = running; i < std::min({wanted, running + 3, kMaxRunning}); ++i) {
      joining.push_back(Join());
    }
    // Newcomers' prompts run by themselves, or beside the others' rows.
    const bool alone = !joining.empty() && Uniform(random_, 0, 2) > 0;
    for (auto& sequence : running_) {
      if (!alone) taking_part.push_back(sequence.get());
    }
    for (Sequence& sequence : joining) {
      running_.push_back(std::make_unique<Sequence>(std::move(sequence)));
      taking_part.push_back(running_.back().get());
    }
    Step step = Forward(launch, number, taking_part, known, judgements);
    std::erase_if(running_, [this](const std::unique_ptr<Sequence>& sequence) {
      const int32_t end = static_cast<int32_t>(sequence->prompt.size()) + sequence->life;
      if (sequence->rows.position < end) return false;
      free_.insert(free_.end(), sequence->blocks.begin(), sequence->blocks.end());
      return true;
    });
    return step;
  }

  // An op that is another one in each step that is not to be replayed.
  void MarkLaunch(Launch launch, size_t number) {
    const TensorView ones = {extra_->as<float>(), 1, 32, 32};
    const TensorView out = {extra_->as<float>() + 512, 1, 32, 32, backend_.activation_dtype()};
    const float own = 1e-5f * (1.0f + static_cast<float>(number) / 1024.0f);
    const float eps = launch == Launch::kPlain ? own : 1e-5f;
    backend_.RmsNorm({.x = ones, .weight = ones.data, .eps = eps, .rows = {}, .out = out});
  }

  Step Forward(Launch launch, size_t number, const std::vector<Sequence*>& sequences,
               const Step* known, std::vector<Judgement>* judgements) {
    Step step = {.decode_only = true};
    std::vector<int32_t> tokens;
    std::vector<SequenceRows> rows;
    std::vector<int32_t> last;
    for (Sequence* sequence : sequences) {
      const bool prefill = sequence->rows.position == 0;
      const std::vector<int32_t> fed =
          prefill ? sequence->prompt : std::vector<int32_t>{last_token_.at(sequence->id)};
      sequence->rows.row_begin = static_cast<int32_t>(tokens.size());
      sequence->rows.num_rows = static_cast<int32_t>(fed.size());
      sequence->rows.kind = prefill ? RowKind::kPrefill : RowKind::kDecode;
      sequence->rows.block_table = sequence->blocks;
      sequence->rows.tempered = sequence->tempered;
      tokens.insert(tokens.end(), fed.begin(), fed.end());
      rows.push_back(sequence->rows);
      last.push_back(static_cast<int32_t>(tokens.size()) - 1);
      if (prefill) step.decode_only = false;
    }
    step.num_rows = static_cast<int32_t>(tokens.size());
    const ModelConfig& c = config();
    const auto layers = static_cast<size_t>(c.num_layers);
    const auto heads = static_cast<size_t>(c.num_query_heads);
    const auto kv_heads = static_cast<size_t>(c.num_kv_heads);
    std::vector<int32_t> attended(layers * tokens.size() * heads, -1);
    std::vector<int32_t> read(layers * tokens.size() * kv_heads, -1);
    EXPECT_EQ(model_->Forward({tokens, rows}, *cache_,
                              {.tokens_attended = attended.data(), .tokens_read = read.data()}),
              absl::OkStatus());
    // Of some steps the draws are launched behind the forward pass.
    const bool in_parts = number % 4 == 1;
    if (in_parts) {
      MarkLaunch(launch, number);
      model_->Launch();
    }
    model_->ComputeLogits(last);
    std::vector<SampleRow> samples;
    std::vector<uint32_t> mask(MaskWords(c.vocab_size), number % 8 < 4 ? 0x08421084u : 0x400u);
    std::vector<std::array<TokenLogprob, 1>> best(sequences.size());
    for (size_t s = 0; s < sequences.size(); ++s) {
      const double draw = UniformReal(random_, 0.0, 1.0);
      samples.push_back({.logits_row = static_cast<int32_t>(s),
                         .temperature = sequences[s]->greedy ? 0.0f : 0.8f,
                         .top_p = 0.9f,
                         .uniform = draw});
      if (!sequences[s]->greedy && number % 3 == 0) samples.back().mask = mask;
      if (known == nullptr) continue;
      samples[s].forced = known->seen.at(sequences[s]->id).token;
      samples[s].num_logprobs = 1;
      samples[s].top = best[s];
    }
    model_->Sample(samples);
    MarkLaunch(launch, number);
    if (in_parts) model_->Launch();
    EXPECT_EQ(model_->Finish(), absl::OkStatus());

    for (size_t s = 0; s < sequences.size(); ++s) {
      Seen& seen = step.seen[sequences[s]->id];
      seen.token = samples[s].token;
      EXPECT_TRUE(samples[s].finite);
      if (!samples[s].mask.empty() && known == nullptr) {
        const auto token = static_cast<size_t>(samples[s].token);
        EXPECT_NE(mask[token / 32] >> (token % 32) & 1, 0u) << "step " << number;
      }
      const auto row = static_cast<size_t>(rows[s].row_begin);
      for (size_t layer = 0; rows[s].kind == RowKind::kDecode && layer < layers; ++layer) {
        const auto* from = &attended[(layer * tokens.size() + row) * heads];
        seen.counts.insert(seen.counts.end(), from, from + heads);
        from = &read[(layer * tokens.size() + row) * kv_heads];
        seen.counts.insert(seen.counts.end(), from, from + kv_heads);
      }
      if (judgements != nullptr) {
        judgements->push_back(
            {static_cast<double>(best[s][0].logprob) - samples[s].logprob, sequences[s]->greedy});
      }
      last_token_[sequences[s]->id] = samples[s].token;
      sequences[s]->rows.position += sequences[s]->rows.num_rows;
    }
    return step;
  }

  Backend& backend_;
  Options options_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Buffer> extra_;  // of the op that tells launches apart
  std::unique_ptr<KvCache> cache_;
  Random random_;
  std::vector<HostTensor> profiles_;  // [1, L * HQ] each
  std::vector<HostTensor> widths_;    // z of heads, likewise
  std::vector<int32_t> free_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::map<int32_t, int32_t> last_token_;
  int32_t next_id_ = 0;
};

class CudaGraphs : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyMissing({.name = "cuda"});
    if (!why.empty()) GTEST_SKIP() << why;
  }

  static std::unique_ptr<Backend> Open(const std::string& name, DType compute) {
    auto backend = MakeBackend({.name = name, .compute = compute});
    EXPECT_EQ(backend.status(), absl::OkStatus());
    return *std::move(backend);
  }

  // Returns the steps, replayed.
  static std::vector<Step> ExpectReplaysToChangeNothing(Decoding& run) {
    std::vector<Step> replayed = run.Steps(Launch::kReplayed);
    const std::vector<Step> plain = run.Steps(Launch::kPlain);
    std::set<int32_t> sizes;
    int different = 0;
    EXPECT_EQ(replayed.size(), plain.size());
    for (size_t i = 0; i < plain.size() && different < 5; ++i) {
      if (plain[i].decode_only) sizes.insert(plain[i].num_rows);
      if (replayed[i].seen == plain[i].seen) continue;
      ++different;
      ADD_FAILURE() << "step " << i << " of " << plain[i].num_rows << " rows differs";
    }
    EXPECT_GE(sizes.size(), std::min<size_t>(20, plain.size() / 20)) << "batches of many sizes";
    return replayed;
  }

  static void ExpectReplaysToBeTheCpus(const TinyModel& model) {
    const auto checkpoint = Checkpoint::Open(model.path());
    ASSERT_EQ(checkpoint.status(), absl::OkStatus());
    const auto cuda = Open("cuda", DType::kFloat32);
    Decoding on_cuda(*checkpoint, *cuda);
    const std::vector<Step> replayed = ExpectReplaysToChangeNothing(on_cuda);

    const auto cpu = Open("cpu", DType::kFloat32);
    Decoding on_cpu(*checkpoint, *cpu);
    std::vector<Judgement> judgements;
    const std::vector<Step> on_host = on_cpu.Steps(Launch::kPlain, &replayed, &judgements);
    // A bound within rounding of its threshold may go either way, once in a while. Layers after the
    // first see more rounding: on a GPU the weights of attention have 16 bits.
    size_t rows = 0;
    size_t equal_rows = 0;
    size_t equal_first_layers = 0;
    for (size_t i = 0; i < on_host.size(); ++i) {
      for (const auto& [id, seen] : on_host[i].seen) {
        if (seen.counts.empty()) continue;
        const std::vector<int32_t>& counts = replayed[i].seen.at(id).counts;
        const auto of_layer = static_cast<std::ptrdiff_t>(counts.size()) / on_cpu.num_layers();
        ++rows;
        equal_rows += seen.counts == counts ? 1 : 0;
        equal_first_layers +=
            std::equal(counts.begin(), counts.begin() + of_layer, seen.counts.begin()) ? 1 : 0;
      }
    }
    EXPECT_GE(static_cast<double>(equal_first_layers), 0.999 * static_cast<double>(rows));
    EXPECT_GE(static_cast<double>(equal_rows), 0.98 * static_cast<double>(rows));
    size_t greedy = 0;
    size_t ties = 0;
    double furthest = 0.0;
    for (const Judgement& judgement : judgements) {
      if (!judgement.greedy) continue;
      ++greedy;
      ties += judgement.below < 0.01 ? 1 : 0;
      furthest = std::max(furthest, judgement.below);
    }
    EXPECT_GE(static_cast<double>(ties), 0.998 * static_cast<double>(greedy))
        << "greedy tokens should be the CPU's best ones, or tie with them";
    ::testing::Test::RecordProperty("rows", std::to_string(rows));
    ::testing::Test::RecordProperty("rows_with_other_counts_than_the_cpu",
                                    std::to_string(rows - equal_rows));
    ::testing::Test::RecordProperty("of_them_in_the_first_layer",
                                    std::to_string(rows - equal_first_layers));
    ::testing::Test::RecordProperty("furthest_below_the_best", std::to_string(furthest));
  }

  TinyModel model_{{.model_dim = 128,
                    .ffn_dim = 192,
                    .num_query_heads = 8,
                    .num_kv_heads = 2,
                    .head_dim = 64,
                    .coarse_weights = true}};
};

TEST_F(CudaGraphs, AThousandReplayedStepsAreThePlainOnesAndTheCpus) {
  ExpectReplaysToBeTheCpus(model_);
}

// With biases, norms of heads and frozen thresholds.
TEST_F(CudaGraphs, AThousandReplayedStepsOfAQwen3AreThePlainOnesAndTheCpus) {
  ExpectReplaysToBeTheCpus(TinyModel({.model_dim = 128,
                                      .ffn_dim = 192,
                                      .num_query_heads = 14,
                                      .num_kv_heads = 2,
                                      .head_dim = 128,
                                      .model_type = "qwen3",
                                      .attention_bias = true,
                                      .coarse_weights = true}));
}

// The second layer has no RoPE, and so one op less.
TEST_F(CudaGraphs, AThousandReplayedStepsOfASmolLM3AreThePlainOnesAndTheCpus) {
  ExpectReplaysToBeTheCpus(TinyModel({.model_dim = 128,
                                      .ffn_dim = 192,
                                      .num_query_heads = 8,
                                      .num_kv_heads = 2,
                                      .head_dim = 128,
                                      .model_type = "smollm3",
                                      .no_rope_layer_interval = 2,
                                      .coarse_weights = true}));
}

// Every row chooses experts of its own in each layer.
TEST_F(CudaGraphs, AThousandReplayedStepsOfAQwen3MoeAreThePlainOnes) {
  const TinyModel model({.model_dim = 128,
                         .num_query_heads = 8,
                         .num_kv_heads = 2,
                         .head_dim = 128,
                         .model_type = "qwen3_moe",
                         .num_experts = 12,
                         .experts_per_token = 3,
                         .expert_ffn_dim = 64});
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    const auto checkpoint = Checkpoint::Open(model.path());
    ASSERT_EQ(checkpoint.status(), absl::OkStatus());
    const auto cuda = Open("cuda", compute);
    Decoding on_cuda(*checkpoint, *cuda);
    ExpectReplaysToChangeNothing(on_cuda);
  }
}

TEST_F(CudaGraphs, AThousandReplayedStepsInBFloat16AreThePlainOnes) {
  const auto checkpoint = Checkpoint::Open(model_.path());
  ASSERT_EQ(checkpoint.status(), absl::OkStatus());
  const auto cuda = Open("cuda", DType::kBFloat16);
  Decoding on_cuda(*checkpoint, *cuda);
  ExpectReplaysToChangeNothing(on_cuda);
}

// Steps with and without rows that have relative thresholds are programs of their own.
TEST_F(CudaGraphs, AThousandReplayedStepsWithAllOptionsAreThePlainOnes) {
  const TinyModel plain({.model_dim = 128,
                         .ffn_dim = 192,
                         .num_query_heads = 8,
                         .num_kv_heads = 2,
                         .head_dim = 64,
                         .has_predictor = false,
                         .coarse_weights = true});
  for (const TinyModel* model : std::initializer_list<const TinyModel*>{&model_, &plain}) {
    const auto checkpoint = Checkpoint::Open(model->path());
    ASSERT_EQ(checkpoint.status(), absl::OkStatus());
    const auto cuda = Open("cuda", DType::kFloat32);
    Decoding on_cuda(*checkpoint, *cuda, Options::kAll);
    ExpectReplaysToChangeNothing(on_cuda);
  }
}

}  // namespace
}  // namespace eta::testing
