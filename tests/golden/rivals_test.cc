// Rivals of the product's selection against what plain loops in float64 admit, and by key against
// what they attend to. The files stand in rivals/; ETA_GOLDEN_RIVALS_DIR names another folder of
// such files.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/attention/named_rival.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "engine/checkpoint/safetensors.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/golden/golden_array.h"
#include "tests/testing/golden/golden_folder.h"

namespace eta::testing {
namespace {

std::string Folder() {
  return GoldenFolder("rivals", "ETA_GOLDEN_RIVALS_DIR");
}

// Of the rows that choose.
struct Chosen {
  std::vector<uint8_t> admitted;  // [T - P, HQ, blocks], by block
  std::vector<float> out;         // [T - P, HQ, d]
  std::vector<int32_t> attended;  // [T - P, HQ]
  std::vector<int32_t> read;      // [T - P, HKV]
};

// One layer, one sequence: the rows of a step are appended, then chosen for.
class Layer {
 public:
  explicit Layer(const SafetensorsFile& file)
      : file_(file),
        backend_(std::make_shared<RivalBackend>(*MakeBackend({.name = "reference"}), 2)),
        q_(GoldenArray<float>(file, "q")),
        k_(GoldenArray<float>(file, "k")),
        v_(GoldenArray<float>(file, "v")),
        tau_(GoldenArray<float>(file, "tau")) {
    const auto& q = file.tensors().at("q").shape;
    tokens_ = static_cast<int32_t>(q[0]);
    heads_ = static_cast<int32_t>(q[1]);
    geometry_ = {.num_kv_heads = static_cast<int32_t>(file.tensors().at("k").shape[1]),
                 .head_dim = static_cast<int32_t>(q[2]),
                 .block_size = Number("block_size"),
                 .sub_block = 0,
                 .dtype = DType::kFloat32};
    tempered_.resize(static_cast<size_t>(tokens_ / 64 + 1));
    std::istringstream positions(file.metadata().at("tempered"));
    for (int32_t t = 0; positions >> t;) tempered_[static_cast<size_t>(t / 64)] |= 1ULL << (t % 64);
    gate_ = file.metadata().at("gate") == "silu" ? Gate::kSilu : Gate::kNone;
    beta_ = std::stof(file.metadata().at("beta"));
    table_.resize(static_cast<size_t>(tokens_ / geometry_.block_size + 1));
    std::iota(table_.rbegin(), table_.rend(), 0);
    const KvLayout layout = *backend_->Layout(geometry_);
    tiles_ = *backend_->Allocate(layout.tile_bytes * table_.size());
    records_ = *backend_->Allocate(layout.record_bytes * table_.size());
  }

  int32_t Number(const char* name) const { return std::stoi(file_.metadata().at(name)); }
  int32_t tokens() const { return tokens_; }
  int32_t heads() const { return heads_; }
  int32_t blocks() const { return tokens_ / geometry_.block_size; }

  Chosen Run(const std::string& way) {
    const AttentionName name = *ParseAttentionName(way);
    AttentionSettings settings;
    SetLocality(name.kind, settings);
    backend_->Use(NamedRival(name, gate_, beta_));
    options_ = {.pinned_blocks = settings.pinned_blocks.value_or(Number("pinned_blocks")),
                .sink_blocks = settings.sink_blocks.value_or(Number("sink_blocks"))};
    chosen_ = {};
    const int32_t prompt = Number("prompt_rows");
    // Steps of several rows give what single ones do.
    Step(0, prompt - 7, RowKind::kPrefill);
    Step(prompt - 7, prompt, RowKind::kPrefill);
    for (int32_t at = prompt; at < tokens_; at += 5) {
      Step(at, std::min(tokens_, at + 5), RowKind::kDecode);
    }
    return chosen_;
  }

 private:
  TensorView View(std::vector<float>& values, int32_t begin, int32_t rows, int32_t width) {
    return {.data = values.data() + int64_t{begin} * width,
            .rows = rows,
            .cols = width,
            .stride = width};
  }

  void Step(int32_t begin, int32_t end, RowKind kind) {
    const int32_t rows = end - begin;
    const int32_t kv_heads = geometry_.num_kv_heads;
    const std::vector<int32_t> tokens(static_cast<size_t>(rows));
    const SequenceRows sequence = {.num_rows = rows,
                                   .position = begin,
                                   .kind = kind,
                                   .attention = options_,
                                   .tempered = tempered_,
                                   .block_table = table_};
    const BatchView batch = {.tokens = tokens, .sequences = std::span(&sequence, 1)};
    backend_->Plan(batch);
    const KvLayerView kv = {.tiles = tiles_->data(), .records = records_->data()};
    const int32_t kv_width = kv_heads * geometry_.head_dim;
    backend_->AppendKv(
        {View(k_, begin, rows, kv_width), View(v_, begin, rows, kv_width), geometry_, kv});
    const auto capacity = static_cast<int64_t>(blocks());
    std::vector<uint32_t> listed(static_cast<size_t>(rows * kv_heads * capacity));
    std::vector<uint32_t> masks(listed.size());
    std::vector<int32_t> counts(static_cast<size_t>(rows * kv_heads));
    std::vector<int32_t> attended(static_cast<size_t>(rows * heads_));
    std::vector<int32_t> read(counts.size());
    const int32_t width = heads_ * geometry_.head_dim;
    const TensorView q = View(q_, begin, rows, width);
    const TensorView thresholds = View(tau_, begin, rows, heads_);
    const float scale = 1.0f / std::sqrt(static_cast<float>(geometry_.head_dim));
    const BlockSelection selection = {listed.data(), masks.data(), counts.data(), capacity, rows};
    backend_->SelectBlocks({.layer = 0,
                            .q = q,
                            .thresholds = thresholds,
                            .num_query_heads = heads_,
                            .geometry = geometry_,
                            .kv = kv,
                            .softmax_scale = scale,
                            .selection = selection,
                            .counts = {attended.data(), read.data(), nullptr}});
    if (kind == RowKind::kPrefill) return;
    std::vector<float> out(static_cast<size_t>(rows * width));
    backend_->DecodeAttention({.q = q,
                               .thresholds = thresholds,
                               .num_query_heads = heads_,
                               .geometry = geometry_,
                               .kv = kv,
                               .softmax_scale = scale,
                               .gate = gate_,
                               .beta = beta_,
                               .selection = selection,
                               .out = View(out, 0, rows, width)});
    ASSERT_EQ(backend_->Finish(), absl::OkStatus());
    chosen_.out.insert(chosen_.out.end(), out.begin(), out.end());
    chosen_.attended.insert(chosen_.attended.end(), attended.begin(), attended.end());
    chosen_.read.insert(chosen_.read.end(), read.begin(), read.end());
    const int32_t group = heads_ / kv_heads;
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t h = 0; h < heads_; ++h) {
        std::vector<uint8_t> blocks(static_cast<size_t>(capacity));
        const int64_t list = int64_t{row} * kv_heads + h / group;
        for (int32_t i = 0; i < counts[static_cast<size_t>(list)]; ++i) {
          const auto at = static_cast<size_t>(list * capacity + i);
          blocks[listed[at]] = (masks[at] >> (h % group)) & 1;
        }
        chosen_.admitted.insert(chosen_.admitted.end(), blocks.begin(), blocks.end());
      }
    }
  }

  const SafetensorsFile& file_;
  std::shared_ptr<RivalBackend> backend_;
  std::vector<float> q_;    // [T, HQ, d]
  std::vector<float> k_;    // [T, HKV, d]
  std::vector<float> v_;    // [T, HKV, d]
  std::vector<float> tau_;  // [T, HQ]
  int32_t tokens_ = 0;
  int32_t heads_ = 0;
  KvGeometry geometry_;
  AttentionOptions options_;
  std::vector<int32_t> table_;
  std::unique_ptr<Buffer> tiles_;
  std::unique_ptr<Buffer> records_;
  std::vector<uint64_t> tempered_;
  Gate gate_ = Gate::kNone;
  float beta_ = 1.0f;
  Chosen chosen_;
};

class GoldenRivals : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenRivals, AdmitWhatPlainLoopsDo) {
  const SafetensorsFile file = *SafetensorsFile::Open(Folder() + "/" + GetParam() + ".safetensors");
  Layer layer(file);
  int ways = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name.find(':') == std::string::npos || file.tensors().contains(name + " read")) continue;
    if (name.ends_with(" read") || name.ends_with(" attended")) continue;
    ++ways;
    const std::vector<uint8_t> wanted = GoldenArray<uint8_t>(file, name);
    const Chosen chosen = layer.Run(name);
    const std::vector<uint8_t>& got = chosen.admitted;
    ASSERT_EQ(got.size(), wanted.size()) << name;
    const auto [first, other] = std::mismatch(got.begin(), got.end(), wanted.begin());
    const auto at = static_cast<int32_t>(first - got.begin());
    EXPECT_EQ(first, got.end()) << name << ": row " << at / (layer.heads() * layer.blocks())
                                << ", head " << at / layer.blocks() % layer.heads() << ", block "
                                << at % layer.blocks();
    const int32_t b = layer.Number("block_size");
    for (size_t i = 0; i < chosen.attended.size(); ++i) {
      const auto blocks = std::span(got).subspan(i * layer.blocks(), layer.blocks());
      const int32_t keys =
          layer.Number("prompt_rows") + static_cast<int32_t>(i) / layer.heads() + 1;
      EXPECT_EQ(chosen.attended[i],
                std::accumulate(blocks.begin(), blocks.end(), 0) * b + keys % b);
    }
  }
  EXPECT_GE(ways, 5);
}

TEST_P(GoldenRivals, AttendToTheKeysThatPlainLoopsDo) {
  const SafetensorsFile file = *SafetensorsFile::Open(Folder() + "/" + GetParam() + ".safetensors");
  Layer layer(file);
  int ways = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    if (!file.tensors().contains(name + " read")) continue;
    ++ways;
    const std::vector<float> wanted = GoldenArray<float>(file, name);
    const Chosen chosen = layer.Run(name);
    EXPECT_EQ(chosen.attended, GoldenArray<int32_t>(file, name + " attended")) << name;
    EXPECT_EQ(chosen.read, GoldenArray<int32_t>(file, name + " read")) << name;
    ASSERT_EQ(chosen.out.size(), wanted.size()) << name;
    for (size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_NEAR(chosen.out[i], wanted[i], 2e-5) << name << " " << i;
    }
  }
  EXPECT_GE(ways, 3);
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenRivals, ::testing::ValuesIn(GoldenCases(Folder())),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace eta::testing
