// Models of GGUF files whose matrices are quantised: blocks reach the backend as they are stored.
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "kernels/forwarding_backend.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/gguf_blocks.h"
#include "tests/testing/engine/tiny_gguf.h"

namespace eta::testing {
namespace {

constexpr int32_t kRows = 24;

// The same model as numbers: no tensor is of blocks. It may have another config.
class UnpackedSource : public TensorSource {
 public:
  explicit UnpackedSource(const TensorSource& source)
      : source_(source), config_json_(source.config_json()) {}

  const std::string& config_json() const override { return config_json_; }
  const std::map<std::string, TensorInfo>& tensors() const override { return source_.tensors(); }
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const override {
    return source_.Read(name);
  }

 protected:
  const TensorSource& source_;
  std::string config_json_;
};

// The same model, with a head of its own and a config that says that there is none.
class TiedSource final : public UnpackedSource {
 public:
  explicit TiedSource(const TensorSource& source) : UnpackedSource(source) {
    const std::string untied = R"("tie_word_embeddings": false)";
    const size_t at = config_json_.find(untied);
    EXPECT_NE(at, std::string::npos);
    config_json_.replace(at, untied.size(), R"("tie_word_embeddings": true)");
  }
  absl::StatusOr<StoredTensor> ReadStored(const std::string& name) const override {
    return source_.ReadStored(name);
  }
};

// Unpacks what it is given to pack, and remembers the types of the stacks. Null: no blocks.
class UnpackingBackend final : public ForwardingBackend {
 public:
  using Types = std::vector<std::optional<GgmlType>>;

  using ForwardingBackend::ForwardingBackend;

  absl::StatusOr<std::unique_ptr<Matrix>> Pack(std::span<const HostMatrix> parts,
                                               WeightFormat format) override {
    std::vector<std::vector<std::byte>> numbers;
    std::vector<HostMatrix> unpacked;
    Types& types = stacks_.emplace_back();
    for (HostMatrix part : parts) {
      types.push_back(part.blocks != nullptr ? std::optional(part.blocks->type) : std::nullopt);
      if (part.blocks != nullptr) {
        const auto count = static_cast<size_t>(part.rows * part.cols);
        const size_t blocks = count / part.blocks->block_elements;
        std::vector<std::byte>& out = numbers.emplace_back(count * sizeof(float));
        UnpackBlocks(*part.blocks,
                     {static_cast<const std::byte*>(part.data), blocks * part.blocks->block_bytes},
                     out);
        part.data = out.data();
        part.blocks = nullptr;
      }
      unpacked.push_back(part);
    }
    return ForwardingBackend::Pack(unpacked, format);
  }

  const std::vector<Types>& stacks() const { return stacks_; }

 private:
  std::vector<Types> stacks_;
};

std::unique_ptr<Backend> Open(const std::string& name) {
  return MakeBackend({.name = name, .num_threads = 1}).value();
}

std::unique_ptr<Model> Load(const TensorSource& source, Backend& backend,
                            WeightFormat weights = WeightFormat::kNative) {
  auto model =
      Model::Load(source, backend, {.weights = weights, .max_rows = kRows, .max_context = 64});
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

// Of each row of a prompt.
std::vector<float> Logits(const TensorSource& source, Backend& backend) {
  const auto model = Load(source, backend);
  if (model == nullptr) return {};
  const ModelConfig& config = model->config();
  const auto cache =
      KvCache::Create(backend, config, MakeKvGeometry(config, DType::kFloat32), 1).value();
  std::vector<int32_t> tokens(kRows);
  for (int32_t i = 0; i < kRows; ++i) tokens[static_cast<size_t>(i)] = (i * 37 + 5) % 264;
  std::vector<int32_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  const std::vector<int32_t> block_table = {0};
  const SequenceRows sequence = {.num_rows = kRows,
                                 .kind = RowKind::kPrefill,
                                 .rope_theta = config.rope_theta,
                                 .block_table = block_table};
  EXPECT_TRUE(model->Forward({tokens, std::span(&sequence, 1)}, *cache, {}).ok());
  model->ComputeLogits(rows);
  std::vector<float> logits(static_cast<size_t>(kRows * config.vocab_size));
  for (int32_t i = 0; i < kRows; ++i) {
    model->DownloadLogits(i, &logits[static_cast<size_t>(i * config.vocab_size)]);
  }
  EXPECT_TRUE(model->Finish().ok());
  return logits;
}

// ||a - b|| / ||b||
double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double apart = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    apart += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(apart / size);
}

size_t FileBytes(const GgufWriter& file) {
  size_t bytes = 0;
  for (const GgufWriter::Tensor& tensor : file.tensors) bytes += tensor.data.size();
  return bytes;
}

class ModelBlocks : public ::testing::Test {
 protected:
  // With rows of whole blocks of every type.
  static TinyGguf Tiny() {
    return TinyGguf({.model_dim = 256, .ffn_dim = 512, .num_query_heads = 4, .head_dim = 64});
  }
  Checkpoint Open(const GgufWriter& file) const {
    return Checkpoint::Open(folder_.Write("tiny.gguf", file.Serialize())).value();
  }

  TempFolder folder_;
};

// Their product is the unpacked model's to the bit once the backend unpacks them: nothing is lost
// or put out of order on the way.
TEST_F(ModelBlocks, ReachTheBackendAsTheyAreStored) {
  TinyGguf tiny = Tiny();
  UseBlocks(tiny.file, kBlockTypes);
  UseBlocks(tiny.file, "blk.1.attn_q.weight", GgmlType::kQ4_K);
  UseBlocks(tiny.file, "blk.1.attn_k.weight", GgmlType::kQ6_K);
  GgufWriter::Tensor& value = tiny.file.At("blk.1.attn_v.weight");
  value.type = static_cast<uint32_t>(GgmlType::kF32);
  value.data.assign(value.dimensions[0] * value.dimensions[1] * sizeof(float), '\x3C');
  const Checkpoint checkpoint = Open(tiny.file);

  UnpackingBackend stored(testing::Open("reference"));
  UnpackingBackend unpacked(testing::Open("reference"));
  EXPECT_EQ(Logits(checkpoint, stored), Logits(UnpackedSource(checkpoint), unpacked));
  const UnpackingBackend::Types three = {GgmlType::kQ4_K, GgmlType::kQ6_K, std::nullopt};
  EXPECT_THAT(stored.stacks(), ::testing::Contains(three));
  std::set<GgmlType> types;
  for (const auto& stack : stored.stacks()) {
    for (const auto& type : stack) {
      if (type) types.insert(*type);
    }
  }
  EXPECT_EQ(types.size(), kBlockTypes.size());
  for (const auto& stack : unpacked.stacks()) {
    EXPECT_THAT(stack, ::testing::Each(std::optional<GgmlType>()));
  }
}

// Activations beside blocks are rounded to 8 bits: by about half a percent of themselves in each
// product (eta-semantics.md, "Packed weights").
TEST_F(ModelBlocks, AreMultipliedWithinTheRoundingOfActivations) {
  for (size_t first = 0; first <= kBlockTypes.size(); ++first) {
    TinyGguf tiny = Tiny();
    const bool all = first == kBlockTypes.size();
    SCOPED_TRACE(all ? "all types" : LayoutOf(kBlockTypes[first]).name);
    UseBlocks(tiny.file, all ? std::span(kBlockTypes) : std::span(kBlockTypes).subspan(first, 1));
    const Checkpoint checkpoint = Open(tiny.file);
    for (const char* name : {"reference", "cpu"}) {
      const auto backend = testing::Open(name);
      const std::vector<float> want = Logits(UnpackedSource(checkpoint), *backend);
      const double apart = RelativeDistance(Logits(checkpoint, *backend), want);
      EXPECT_LT(apart, 0.04) << name;
      EXPECT_GT(apart, 1e-4) << name << ": products should be of integers";
    }
  }
}

TEST_F(ModelBlocks, TakeTheFilesMemoryOnACpu) {
  const auto cpu = testing::Open("cpu");
  for (const GgmlType type : kBlockTypes) {
    SCOPED_TRACE(LayoutOf(type).name);
    TinyGguf tiny = Tiny();
    UseBlocks(tiny.file, std::span(&type, 1));
    const Checkpoint checkpoint = Open(tiny.file);
    const size_t native = Load(checkpoint, *cpu)->weight_bytes();
    EXPECT_GE(native, FileBytes(tiny.file));
    EXPECT_LE(native, FileBytes(tiny.file) * 11 / 10);
    // What has no more bits than are asked for stays as it is.
    EXPECT_EQ(Load(checkpoint, *cpu, WeightFormat::kInt8)->weight_bytes(), native);
    const size_t four = Load(checkpoint, *cpu, WeightFormat::kInt4)->weight_bytes();
    if (type == GgmlType::kQ4_0 || type == GgmlType::kQ4_1 || type == GgmlType::kQ4_K ||
        type == GgmlType::kMXFP4) {
      EXPECT_EQ(four, native);
    } else {
      EXPECT_LT(four, native);
    }
  }
}

TEST_F(ModelBlocks, FoldersAreRoundedToEightAndFourBits) {
  const Checkpoint checkpoint = Open(Tiny().file);
  const auto cpu = testing::Open("cpu");
  const auto bytes = [&](WeightFormat format) {
    return static_cast<double>(Load(checkpoint, *cpu, format)->weight_bytes());
  };
  const double native = bytes(WeightFormat::kNative);
  EXPECT_NEAR(bytes(WeightFormat::kInt8) / native, 34.0 / 128, 0.04);
  // Embedding, head, key, value and down projections keep eight bits.
  EXPECT_GT(bytes(WeightFormat::kInt4) / native, 24.0 / 128);
  EXPECT_LT(bytes(WeightFormat::kInt4) / native, 32.0 / 128);
}

// bad input: Weights | a block with a scale or minimum that is NaN or infinite |
//   FAILED_PRECONDITION, tensor and block named, unless a flag allows them |
//   BadModelTest.AGgufFileIsRefusedInOneLine
TEST_F(ModelBlocks, WithAScaleThatIsNoNumberAreNamedUnlessTheyAreAllowed) {
  const auto backend = testing::Open("reference");
  for (const GgmlType type : kBlockTypes) {
    SCOPED_TRACE(LayoutOf(type).name);
    TinyGguf tiny = Tiny();
    UseBlocks(tiny.file, std::span(&type, 1));
    std::string& data = tiny.file.At("blk.1.ffn_down.weight").data;
    for (const size_t at : HalvesOf(type)) {
      for (const uint16_t half : {0x7E00, 0xFC00}) {
        const std::string sound = data;
        SetHalf(reinterpret_cast<std::byte*>(&data[3 * LayoutOf(type).block_bytes + at]), half);
        const Checkpoint checkpoint = Open(tiny.file);
        data = sound;
        EXPECT_THAT(Model::Load(checkpoint, *backend, {}).status(),
                    FailsSaying(absl::StatusCode::kFailedPrecondition,
                                "tensor model.layers.1.mlp.down_proj.weight: block 3: a scale is "
                                "NaN or infinite"));
        EXPECT_TRUE(Model::Load(checkpoint, *backend, {.allow_nonfinite_weights = true}).ok());
      }
    }
  }
}

// bad input: Weights | MXFP4 with a scale of 255, NaN in e8m0 |
//   FAILED_PRECONDITION, tensor and block named, unless a flag allows them
TEST_F(ModelBlocks, OfMxfp4WithANanScaleAreNamed) {
  const auto backend = testing::Open("reference");
  TinyGguf tiny = Tiny();
  UseBlocks(tiny.file, "blk.1.ffn_down.weight", GgmlType::kMXFP4);
  tiny.file.At("blk.1.ffn_down.weight").data[2 * LayoutOf(GgmlType::kMXFP4).block_bytes] = '\xFF';
  const Checkpoint checkpoint = Open(tiny.file);
  EXPECT_THAT(Model::Load(checkpoint, *backend, {}).status(),
              FailsSaying(absl::StatusCode::kFailedPrecondition,
                          "tensor model.layers.1.mlp.down_proj.weight: block 2: a scale is NaN or "
                          "infinite"));
  EXPECT_TRUE(Model::Load(checkpoint, *backend, {.allow_nonfinite_weights = true}).ok());
}

TEST_F(ModelBlocks, OfANegativeZeroAreZeros) {
  for (const GgmlType type : kBlockTypes) {
    SCOPED_TRACE(LayoutOf(type).name);
    TinyGguf tiny = Tiny();
    UseBlocks(tiny.file, std::span(&type, 1));
    std::string& data = tiny.file.At("blk.0.attn_v.weight").data;
    for (const char* name : {"reference", "cpu"}) {
      const auto backend = testing::Open(name);
      std::vector<float> logits[2];
      for (const bool negative : {false, true}) {
        for (const size_t at : HalvesOf(type)) {
          SetHalf(reinterpret_cast<std::byte*>(&data[at]), negative ? 0x8000 : 0x0000);
        }
        logits[negative ? 1 : 0] = Logits(Open(tiny.file), *backend);
      }
      EXPECT_EQ(logits[0], logits[1]) << name;
    }
  }
}

// A head that is there although it is tied counts where it is not the embedding.
TEST_F(ModelBlocks, OfAHeadAreComparedWithTheEmbeddings) {
  TinyGguf tiny = Tiny();
  UseBlocks(tiny.file, kBlockTypes);
  UseBlocks(tiny.file, "token_embd.weight", GgmlType::kQ4_K);
  UseBlocks(tiny.file, "output.weight", GgmlType::kQ4_K);
  std::string& head = tiny.file.At("output.weight").data;
  head = tiny.file.At("token_embd.weight").data;
  const auto bytes = [&] {
    const Checkpoint checkpoint = Open(tiny.file);
    UnpackingBackend backend(testing::Open("reference"));
    return Load(TiedSource(checkpoint), backend)->weight_bytes();
  };
  const size_t tied = bytes();
  head.back() = static_cast<char>(head.back() ^ 1);
  EXPECT_EQ(bytes() - tied, size_t{264} * 256 * sizeof(float));
}

}  // namespace
}  // namespace eta::testing
