// Learned sinks of a model reach every op of attention that normalises: without one of them logits
// would still look like an answer's.
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "kernels/forwarding_backend.h"
#include "kernels/params/calibration.h"
#include "kernels/params/selection.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Notes which ops of attention were called with sinks, and which without.
class SinksRecorder : public ForwardingBackend {
 public:
  explicit SinksRecorder(std::shared_ptr<Backend> backend)
      : ForwardingBackend(std::move(backend)) {}

  void SelectBlocks(const SelectBlocksParams& params) override {
    Note("select", params.sinks);
    ForwardingBackend::SelectBlocks(params);
  }
  void SelectPrefillBlocks(const SelectPrefillParams& params) override {
    Note("select prefill", params.sinks);
    ForwardingBackend::SelectPrefillBlocks(params);
  }
  void DecodeAttention(const AttentionParams& params) override {
    Note(params.window > 0 ? "decode in a window" : "decode", params.sinks);
    ForwardingBackend::DecodeAttention(params);
  }
  void PrefillAttention(const AttentionParams& params) override {
    Note(params.window > 0 ? "prefill in a window" : "prefill", params.sinks);
    ForwardingBackend::PrefillAttention(params);
  }
  void MeasureShadow(const ShadowParams& params) override {
    Note("shadow", params.attention.sinks);
    ForwardingBackend::MeasureShadow(params);
  }

  std::set<std::string> with;
  std::set<std::string> without;

 private:
  void Note(const std::string& op, const float* sinks) {
    (sinks != nullptr ? with : without).insert(op);
  }
};

TEST(ModelSinks, ReachEveryOpThatNormalises) {
  const auto checkpoint = Checkpoint::Open(ETA_SOURCE_DIR "/tests/golden/families/gpt-oss").value();
  SinksRecorder backend(MakeBackend({.name = "reference"}).value());
  const auto model =
      Model::Load(checkpoint, backend, {.max_rows = 140, .max_context = 192}).value();
  const ModelConfig& config = model->config();
  const auto cache =
      KvCache::Create(backend, config, MakeKvGeometry(config, DType::kFloat32), 12).value();
  ASSERT_LE(cache->groups().size(), 4);
  const std::vector<int32_t> tables[] = {{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10, 11}};
  const std::span<const int32_t> more[] = {tables[1], tables[2], tables[3]};
  std::vector<int32_t> tokens(140);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 37 % 257);
  SequenceRows rows = {
      .num_rows = 139,
      .kind = RowKind::kPrefill,
      .rope_theta = config.rope_theta,
      .attention = {.sparse_prefill = true, .relative = true},
      .block_table = tables[0],
      .more_tables = std::span(more).first(static_cast<size_t>(cache->groups().size()) - 1)};
  const std::span<const int32_t> all = tokens;
  ASSERT_TRUE(model->Forward({all.first(139), std::span(&rows, 1)}, *cache, {}).ok());
  ASSERT_TRUE(model->Finish().ok());
  rows.position = 139;
  rows.num_rows = 1;
  rows.kind = RowKind::kDecode;
  const std::vector<int32_t> chosen = {0};
  const auto heads = static_cast<size_t>(config.num_query_heads);
  std::vector<float> mass(heads);
  std::vector<float> error(heads);
  std::vector<ShadowLayer> layers(static_cast<size_t>(config.num_layers));
  layers[1] = {chosen, mass.data(), error.data()};
  ASSERT_TRUE(
      model->Forward({all.subspan(139), std::span(&rows, 1)}, *cache, {.shadow = layers}).ok());
  ASSERT_TRUE(model->Finish().ok());
  EXPECT_THAT(backend.with,
              ElementsAre("decode", "decode in a window", "prefill", "prefill in a window",
                          "select", "select prefill", "shadow"));
  EXPECT_THAT(backend.without, IsEmpty());
  for (const float kept : mass) EXPECT_GT(kept, 0.0f);
}

}  // namespace
}  // namespace eta
