// Lists of selected blocks have room for the rows that select, not for every row of the largest
// step, and steps keep to that: replayed answers and passes come to the same in smaller steps.
#include "engine/model/selection_lists.h"

#include <gmock/gmock.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model.h"
#include "kernels/forwarding_backend.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/pass_recorder.h"
#include "tests/testing/engine/scripted_engine.h"

namespace eta::testing {
namespace {

constexpr int32_t kMillion = 1 << 20;
constexpr int64_t kMiB = int64_t{1} << 20;

// Of Llama 3.1 8B.
ModelConfig Llama() {
  ModelConfig config;
  config.num_kv_heads = 8;
  config.block_size = 64;
  return config;
}

int64_t ListBytes(int32_t max_context, int32_t max_running) {
  return MaxDecodeRows(Llama(), max_context, max_running, 2048) *
         ListBytesPerRow(8, max_context, 64);
}

TEST(SelectionLists, OfAMillionTokensTakeWhatTheStreamsNeed) {
  EXPECT_EQ(MaxDecodeRows(Llama(), kMillion, 64, 2048), 64);
  EXPECT_LT(ListBytes(kMillion, 64), 65 * kMiB);
  EXPECT_EQ(MaxDecodeRows(Llama(), kMillion, 256, 2048), 256);
  EXPECT_LT(ListBytes(kMillion, 256), 257 * kMiB);
  EXPECT_GT(2048 * ListBytesPerRow(8, kMillion, 64), 2000 * kMiB) << "if all rows had lists";
}

TEST(SelectionLists, OfShortContextsHoldEveryRow) {
  EXPECT_EQ(MaxDecodeRows(Llama(), 8192, 64, 2048), 2048);
  EXPECT_EQ(MaxDecodeRows(Llama(), 1, 1, 1), 1);
  for (int32_t context = 64; context <= kMillion; context *= 2) {
    EXPECT_LE(ListBytes(context, 1), kMaxListBytes) << context;
    EXPECT_GE(MaxDecodeRows(Llama(), context, 64, 2048), 64) << context;
  }
}

TEST(SelectionLists, HaveABlockMoreThanTheLongestSequenceFills) {
  EXPECT_EQ(ListCapacity(kMillion, 64), kMillion / 64 + 1);
  EXPECT_EQ(ListCapacity(63, 64), 1);
  EXPECT_EQ(ListBytesPerRow(2, 160, 16), 2 * 11 * 8);
}

TEST(SelectionLists, MasksOfSparsePrefillTakeABitABlock) {
  EXPECT_EQ(MaskWords(63, 64), 1);
  EXPECT_EQ(MaskWords(63 * 64, 64), 1);
  EXPECT_EQ(MaskWords(64 * 64, 64), 2);
  EXPECT_EQ(MaskBytesPerRow(32, kMillion, 64), 32 * 257 * 8);
  EXPECT_LT(2048 * MaskBytesPerRow(32, 128 * 1024, 64), 18 * kMiB);
}

class CountingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    allocated_ += static_cast<int64_t>(bytes);
    return ForwardingBackend::Allocate(bytes);
  }
  int64_t allocated() const { return allocated_; }

 private:
  int64_t allocated_ = 0;
};

class SelectionListsOfAModel : public ::testing::Test {
 protected:
  static std::shared_ptr<Backend> Open() {
    return *MakeBackend({.name = "cpu", .num_threads = 1, .compute = DType::kFloat32});
  }
  const TinyModel model_;
};

TEST_F(SelectionListsOfAModel, AreAllThatFewerDecodeRowsSave) {
  constexpr int32_t kContext = 65536;
  const auto checkpoint = Checkpoint::Open(model_.path()).value();
  const auto load = [&](int32_t max_decode_rows) {
    CountingBackend backend(Open());
    const auto model =
        Model::Load(checkpoint, backend,
                    {.max_rows = 256, .max_decode_rows = max_decode_rows, .max_context = kContext});
    EXPECT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->max_decode_rows(), max_decode_rows == 0 ? 256 : max_decode_rows);
    return backend.allocated();
  };
  constexpr int64_t kRescuedBytes = 4 * sizeof(int32_t);  // a block per query head
  EXPECT_EQ(load(0) - load(8), 248 * (ListBytesPerRow(2, kContext, 16) + kRescuedBytes));
}

TEST_F(SelectionListsOfAModel, RefuseADecodeRowBehindThem) {
  const auto backend = Open();
  const auto checkpoint = Checkpoint::Open(model_.path()).value();
  const auto model =
      Model::Load(checkpoint, *backend, {.max_rows = 16, .max_decode_rows = 2, .max_context = 64})
          .value();
  const auto cache = KvCache::Create(*backend, model->config(),
                                     MakeKvGeometry(model->config(), DType::kFloat32), 2)
                         .value();
  const std::vector<int32_t> tokens(3, 5);
  const std::vector<int32_t> blocks = {0};
  SequenceRows rows = {.num_rows = 3, .rope_theta = 10000.0f, .block_table = blocks};
  EXPECT_TRUE(absl::IsInvalidArgument(model->Forward({tokens, std::span(&rows, 1)}, *cache, {})));
  rows.kind = RowKind::kPrefill;
  EXPECT_TRUE(model->Forward({tokens, std::span(&rows, 1)}, *cache, {}).ok());
  EXPECT_TRUE(model->Finish().ok());
}

// Two answers that take each other's blocks, so that each is replayed.
TEST_F(SelectionListsOfAModel, ReplaysComeToTheSameInSmallerSteps) {
  const auto play = [&](int32_t num_blocks, int32_t max_decode_rows) {
    const auto backend = Open();
    ScriptedEngine engine(
        {.model_dir = model_.path(),
         .num_blocks = num_blocks,
         .batcher = {.max_running = 2, .max_step_tokens = 48, .max_decode_rows = max_decode_rows}},
        *backend);
    for (uint32_t seed = 1; seed <= 2; ++seed) {
      Request request = Greedy(Prompt(30, seed), 150);
      request.id = std::to_string(seed);
      engine.Submit(request);
    }
    for (int step = 0; step < 5000; ++step) {
      const auto ran = engine.Step();
      EXPECT_TRUE(ran.ok()) << ran.status();
      const Batcher& batcher = engine.dispatcher().batcher();
      if (!ran.ok() || batcher.num_running() + batcher.queue().size() == 0) break;
    }
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(engine.failure(i).ok()) << engine.failure(i);
    return std::pair(std::vector{engine.ids(0), engine.ids(1)}, engine.preemptions());
  };
  const auto [ids, undisturbed] = play(64, 48);
  EXPECT_EQ(undisturbed, 0);
  EXPECT_EQ(ids[0].size(), 150u);
  for (const int32_t max_decode_rows : {2, 5, 48}) {
    const auto [replayed, preemptions] = play(15, max_decode_rows);
    EXPECT_GT(preemptions, 0) << max_decode_rows;
    EXPECT_EQ(replayed, ids) << max_decode_rows;
  }
}

// Beside a pass of prompt rows alone, whose rows come behind those that select.
TEST_F(SelectionListsOfAModel, PassesComeToTheSameInSmallerSteps) {
  const auto measure = [&](int32_t max_decode_rows) {
    const auto backend = Open();
    ScriptedEngine engine(
        {.model_dir = model_.path(),
         .batcher = {.max_running = 2, .max_step_tokens = 48, .max_decode_rows = max_decode_rows}},
        *backend);
    std::vector<std::shared_ptr<PassRecorder>> recorders;
    for (const int32_t decode_from : {200, 40, 100}) {
      Pass pass;
      pass.tokens = Prompt(200, static_cast<uint32_t>(decode_from));
      pass.decode_from = decode_from;
      pass.loss_from = 20;
      recorders.push_back(std::make_shared<PassRecorder>());
      engine.SubmitPass(std::move(pass), recorders.back());
    }
    for (int step = 0; step < 5000 && !engine.dispatcher().passes().empty(); ++step) {
      const auto ran = engine.Step();
      EXPECT_TRUE(ran.ok()) << ran.status();
      if (!ran.ok()) break;
    }
    std::vector<std::vector<float>> losses;
    for (const auto& recorder : recorders) {
      const auto outcome = recorder->Wait();
      EXPECT_TRUE(outcome.ok()) << outcome.status();
      if (!outcome.ok()) continue;
      losses.push_back(outcome->losses);
    }
    return losses;
  };
  const auto whole = measure(48);
  EXPECT_EQ(whole.size(), 3u);
  EXPECT_EQ(measure(2), whole);
  EXPECT_EQ(measure(7), whole);
}

}  // namespace
}  // namespace eta::testing
