#include "training/trainer/trainer.h"

#include <barrier>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "tests/testing/training/forwarding_backend.h"
#include "tests/testing/training/toy_model.h"
#include "training/cpu/cpu_backend.h"

namespace eta::training {
namespace {

using testing::MakeToy;
using testing::PhraseSource;
using testing::ToyModel;
using testing::ToySpec;

constexpr int32_t kSequences = 4;
constexpr int32_t kLength = 70;

TrainerOptions Options(int64_t steps) {
  TrainerOptions options;
  options.adamw.weight_decay = 0.01;
  options.rate = {.peak = 1e-2, .floor = 1e-3, .warm_up = 5, .steps = steps};
  options.beta = {.first = 1.0, .last = 5.0, .steps = steps * 7 / 10};
  options.sparsity = {.peak = 0.2, .delay = 10, .ramp = 10, .hold = steps, .decay = 0};
  options.block_share = 0.5;
  return options;
}

// A run: model, data and trainer on a backend.
struct ToyRun {
  ToyRun(TrainingBackend& backend, const TrainerOptions& options, int32_t sequences = kSequences,
         const testing::ToyOptions& shape = {.head_dim = 8})
      : toy(MakeToy(ToySpec(shape), backend, {.sequences = sequences, .length = kLength},
                    TrainedPart::kAll, {.seed = 1, .deviation = 0.1, .threshold_bias = -1.0f})),
        source(17, sequences, kLength) {
    auto created = Trainer::Create(options, *toy.model, nullptr, source);
    EXPECT_TRUE(created.ok()) << created.status();
    trainer = *std::move(created);
  }

  std::vector<StepReport> Steps(int count) {
    std::vector<StepReport> reports;
    for (int i = 0; i < count; ++i) {
      auto report = trainer->Step();
      EXPECT_TRUE(report.ok()) << report.status();
      if (!report.ok()) break;
      reports.push_back(*std::move(report));
    }
    return reports;
  }

  std::vector<std::vector<float>> Values() const {
    std::vector<std::vector<float>> values;
    for (const Parameter& p : toy.parameters->layout().parameters()) {
      values.push_back(*toy.parameters->Read(p.name));
    }
    return values;
  }

  ToyModel toy;
  PhraseSource source;
  std::unique_ptr<Trainer> trainer;
};

double MeanLoss(std::span<const StepReport> reports) {
  double sum = 0.0;
  for (const StepReport& report : reports) sum += report.cross_entropy;
  return sum / static_cast<double>(reports.size());
}

TEST(Trainer, LowersTheLossAndTheDensity) {
  const auto cpu = cpu::MakeBackend(2);
  ToyRun run(*cpu, Options(120));
  const std::vector<StepReport> reports = run.Steps(120);
  ASSERT_EQ(reports.size(), 120u);
  const std::span<const StepReport> all(reports);
  EXPECT_LT(MeanLoss(all.last(5)), MeanLoss(all.first(3)) - 0.4);
  EXPECT_LT(reports.back().gate_density, reports.front().gate_density - 0.1);
  EXPECT_EQ(reports.front().beta, 1.0);
  EXPECT_EQ(reports.back().beta, 5.0);
  EXPECT_EQ(reports.back().tokens, int64_t{kSequences} * kLength);
  EXPECT_EQ(run.trainer->ReadState().tokens, int64_t{120} * kSequences * kLength);
}

// The schedule of the sparsity weight says nothing to it.
TEST(Trainer, TrainsAModelWithoutAGate) {
  const auto cpu = cpu::MakeBackend(2);
  TrainerOptions options = Options(20);
  options.sparsity.delay = 0;
  ToyRun run(*cpu, options, kSequences,
             {.gate = GateKind::kNone, .thresholds = ThresholdSource::kNone});
  const std::vector<StepReport> reports = run.Steps(15);
  for (const StepReport& report : reports) EXPECT_FALSE(report.skipped);
  EXPECT_LT(reports.back().cross_entropy, reports.front().cross_entropy);
  EXPECT_TRUE(std::isnan(reports.back().gate_density));
}

TEST(Trainer, TwoRunsGiveTheSameBits) {
  const auto two_threads = cpu::MakeBackend(2);
  const auto three_threads = cpu::MakeBackend(3);
  ToyRun first(*two_threads, Options(20));
  ToyRun second(*three_threads, Options(20));
  first.Steps(12);
  second.Steps(12);
  EXPECT_EQ(first.Values(), second.Values());
}

TEST(Trainer, TrainsNativeSparseAttention) {
  const auto cpu = cpu::MakeBackend(2);
  ToyRun run(*cpu, Options(120), kSequences, {.attention = AttentionScheme::kNativeSparse});
  const std::vector<StepReport> reports = run.Steps(120);
  ASSERT_EQ(reports.size(), 120u);
  const std::span<const StepReport> all(reports);
  EXPECT_LT(MeanLoss(all.last(5)), MeanLoss(all.first(3)) - 0.3);
  EXPECT_TRUE(std::isnan(reports.back().gate_density));
}

void ExpectThatAResumedRunGivesTheSameBits(const testing::ToyOptions& shape) {
  const auto cpu = cpu::MakeBackend(2);
  TrainerOptions options = Options(20);
  options.micro_batches = 2;
  options.dual_ascent = DualAscentOptions{};
  ToyRun whole(*cpu, options, kSequences, shape);
  whole.Steps(7);
  whole.trainer->Update({0.6, 0.001});
  const TrainerState state = whole.trainer->ReadState();
  const int64_t position = whole.source.position;
  const std::vector<std::vector<float>> values = whole.Values();
  whole.Steps(6);

  ToyRun resumed(*cpu, options, kSequences, shape);
  const auto& parameters = resumed.toy.parameters->layout().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    ASSERT_TRUE(resumed.toy.parameters->Write(parameters[i].name, values[i]).ok());
  }
  ASSERT_TRUE(resumed.trainer->WriteState(state).ok());
  resumed.source.position = position;
  resumed.Steps(6);
  EXPECT_EQ(resumed.Values(), whole.Values());
  EXPECT_EQ(resumed.trainer->step(), 13);
  EXPECT_EQ(resumed.trainer->dual_ascent()->weight, whole.trainer->dual_ascent()->weight);
}

TEST(Trainer, AResumedRunGivesTheSameBits) {
  ExpectThatAResumedRunGivesTheSameBits({.head_dim = 8});
  ExpectThatAResumedRunGivesTheSameBits({.attention = AttentionScheme::kNativeSparse});
}

// Two micro-batches are the same step as one of their size, but for the order of sums.
TEST(Trainer, AccumulatesMicroBatches) {
  const auto cpu = cpu::MakeBackend(2);
  TrainerOptions options = Options(10);
  ToyRun whole(*cpu, options, 4);
  options.micro_batches = 2;
  ToyRun parts(*cpu, options, 2);
  const StepReport expected = whole.Steps(1).front();
  const StepReport got = parts.Steps(1).front();
  EXPECT_NEAR(got.loss, expected.loss, 1e-5);
  EXPECT_NEAR(got.gradient_norm, expected.gradient_norm, 1e-4 * expected.gradient_norm);
  EXPECT_NEAR(got.gate_density, expected.gate_density, 1e-5);
  EXPECT_NEAR(got.block_density, expected.block_density, 1e-5);
  EXPECT_EQ(got.tokens, expected.tokens);
}

// Losses that are not finite in the steps that `bad` names.
class FaultyBackend final : public testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void HeadLoss(const HeadLossParams& params) override {
    ForwardingBackend::HeadLoss(params);
    if (bad_losses-- <= 0) return;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    Upload(params.grad_hidden.data, &nan, sizeof(nan));
  }

  int bad_losses = 0;
};

TEST(Trainer, SkipsAStepThatIsNotFiniteAndGoesOn) {
  FaultyBackend backend(cpu::MakeBackend(2));
  ToyRun run(backend, Options(20));
  run.Steps(2);
  const auto before = run.Values();
  const AdamWState moments = run.trainer->ReadState().adamw;
  backend.bad_losses = 2;
  for (const StepReport& report : run.Steps(2)) EXPECT_TRUE(report.skipped);
  EXPECT_EQ(run.Values(), before);
  EXPECT_EQ(run.trainer->ReadState().adamw.first, moments.first);
  EXPECT_EQ(run.trainer->ReadState().adamw.steps, moments.steps);
  EXPECT_FALSE(run.Steps(1).front().skipped);
  const TrainerState state = run.trainer->ReadState();
  EXPECT_EQ(state.skipped, 2);
  EXPECT_EQ(state.skipped_in_row, 0);
  EXPECT_EQ(state.step, 5);
}

TEST(Trainer, StopsAfterTooManySkippedSteps) {
  FaultyBackend backend(cpu::MakeBackend(2));
  TrainerOptions options = Options(20);
  options.max_skipped = 3;
  ToyRun run(backend, options);
  backend.bad_losses = 10;
  EXPECT_TRUE(run.trainer->Step()->skipped);
  EXPECT_TRUE(run.trainer->Step()->skipped);
  EXPECT_EQ(run.trainer->Step().status().code(), absl::StatusCode::kAborted);
}

TEST(Trainer, SaysWhenTheDataHasEnded) {
  const auto cpu = cpu::MakeBackend(1);
  ToyRun run(*cpu, Options(20));
  run.source.end = 2;
  run.Steps(2);
  EXPECT_EQ(run.trainer->Step().status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(run.trainer->step(), 2);
}

// Two ranks in two threads, whose sums meet in shared memory.
class RankBackend final : public testing::ForwardingBackend {
 public:
  struct Meeting {
    std::barrier<> barrier{2};
    std::vector<float> values[2];
  };

  RankBackend(int rank, Meeting& meeting)
      : ForwardingBackend(cpu::MakeBackend(1)), rank_(rank), meeting_(meeting) {}

  int rank() const override { return rank_; }
  int world_size() const override { return 2; }
  void AllReduce(float* values, int64_t count) override {
    meeting_.values[rank_].assign(values, values + count);
    meeting_.barrier.arrive_and_wait();
    for (int64_t i = 0; i < count; ++i) {
      values[i] =
          meeting_.values[0][static_cast<size_t>(i)] + meeting_.values[1][static_cast<size_t>(i)];
    }
    meeting_.barrier.arrive_and_wait();
  }

 private:
  int rank_;
  Meeting& meeting_;
};

TEST(Trainer, RanksStayTogether) {
  const auto cpu = cpu::MakeBackend(1);
  TrainerOptions options = Options(20);
  options.micro_batches = 2;
  ToyRun alone(*cpu, options, 2);
  const std::vector<StepReport> expected = alone.Steps(3);

  RankBackend::Meeting meeting;
  RankBackend backends[] = {{0, meeting}, {1, meeting}};
  options.micro_batches = 1;
  std::vector<std::vector<float>> values[2];
  std::vector<StepReport> reports[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ToyRun run(backends[rank], options, 2);
      run.source.position = rank;
      run.source.stride = 2;
      reports[rank] = run.Steps(3);
      values[rank] = run.Values();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(values[0], values[1]);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(reports[0][i].loss, expected[i].loss, 1e-4);
    EXPECT_EQ(reports[0][i].tokens, expected[i].tokens);
    EXPECT_EQ(reports[0][i].gradient_norm, reports[1][i].gradient_norm);
  }
}

TEST(Trainer, SteersTheSparsityWeight) {
  const auto cpu = cpu::MakeBackend(1);
  TrainerOptions options = Options(20);
  options.sparsity = {.peak = 1.0, .delay = 0, .ramp = 0, .hold = 1000};
  options.dual_ascent = DualAscentOptions{.target_union = 0.25, .initial_weight = 0.01};
  ToyRun run(*cpu, options);
  EXPECT_DOUBLE_EQ(run.trainer->Settings().regulariser.weight, 0.01);
  run.trainer->Update({0.9, 0.0});
  const double raised = run.trainer->Settings().regulariser.weight;
  EXPECT_GT(raised, 0.01);
  run.trainer->Update({0.9, 0.5});
  EXPECT_LT(run.trainer->Settings().regulariser.weight, raised) << "over the bound on quality";
}

}  // namespace
}  // namespace eta::training
