// A model as a GGUF file, and back: the same but for what the type of the matrices rounds.
#include "engine/model/gguf_writer/gguf_export.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>

#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/checkpoint/piece_table.h"
#include "engine/model/gguf_writer/gguf_head.h"
#include "engine/model/gguf_writer/gguf_tokenizer_keys.h"
#include "engine/model/model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/calibration/evaluation_fixture.h"
#include "tests/testing/engine/tiny_gguf.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::TinyGguf;
using testing::TinyModel;
using testing::TinyModelOptions;
using testing::UseByteLevelVocabulary;
using Json = nlohmann::json;

// By the formula of Q8_0, written down once more.
std::vector<float> RoundedByHand(std::vector<float> values) {
  for (size_t begin = 0; begin < values.size(); begin += 32) {
    float most = 0.0f;
    for (size_t i = begin; i < begin + 32; ++i) most = std::fmax(most, std::fabs(values[i]));
    const float scale = most / 127.0f;
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    const float stored = RoundTo(DType::kFloat16, scale);
    for (size_t i = begin; i < begin + 32; ++i) {
      values[i] = std::round(values[i] * inverse) * stored;
    }
  }
  return values;
}

std::vector<float> Floats(const TensorReader& reader, const std::string& name) {
  const auto data = reader.Read(name);
  EXPECT_TRUE(data.ok()) << data.status();
  if (!data.ok()) return {};
  const DType dtype = reader.tensors().at(name).dtype;
  std::vector<float> values(data->size() / SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = LoadElement(dtype, data->data(), static_cast<int64_t>(i));
  }
  return values;
}

bool IsRounded(const std::string& name) {
  return name.find("norm") == std::string::npos && name.find("tau_proj") == std::string::npos &&
         name.find("bias") == std::string::npos && name.find("mlp.gate.") == std::string::npos;
}

class GgufExportTest : public EvaluationTest {
 protected:
  Checkpoint Exported(const Checkpoint& checkpoint, GgmlType type = GgmlType::kQ8_0) {
    const std::string path = Path("model.gguf");
    std::filesystem::remove(path);
    const auto written = ExportGguf(checkpoint, path, type);
    EXPECT_TRUE(written.ok()) << written.status();
    EXPECT_EQ(written->bytes, std::filesystem::file_size(path));
    auto read = Checkpoint::Open(path);
    EXPECT_TRUE(read.ok()) << read.status();
    return *std::move(read);
  }
  void ExpectRefused(const Checkpoint& checkpoint, const std::string& cause,
                     GgmlType type = GgmlType::kQ8_0) {
    const auto written = ExportGguf(checkpoint, Path("refused.gguf"), type);
    EXPECT_THAT(std::string(written.status().message()), HasSubstr(cause));
    EXPECT_FALSE(std::filesystem::exists(Path("refused.gguf")));
    EXPECT_FALSE(std::filesystem::exists(Path("refused.gguf.partial")));
  }
  // A folder whose config.json says this too.
  static void Change(const std::string& folder, const Json& fields) {
    const std::string path = folder + "/config.json";
    Json config = Json::parse(ReadFile(path));
    config.update(fields);
    std::filesystem::remove(path);
    std::FILE* file = std::fopen(path.c_str(), "w");
    std::fputs(config.dump().c_str(), file);
    std::fclose(file);
  }
};

TEST_F(GgufExportTest, ComesBackButForTheRounding) {
  const TinyModelOptions models[] = {
      {.index = "outlier",
       .sink_blocks = 3,
       .reads = "shared",
       .special_keys = "temper",
       .index_metric = true},
      {.block_size = 64, .tied = false, .dtype = DType::kBFloat16, .shards = 2},
      {.has_predictor = false, .index_metric = true},
      {.model_type = "llama", .attention_bias = true},
      {.model_type = "mistral", .sliding_window = 512},
      {.model_type = "qwen2", .index = "moment"},
      {.num_layers = 3,
       .model_type = "qwen2",
       .sliding_window = 96,
       .window_layers = {true, false, true}},
      {.num_layers = 4,
       .model_type = "smollm3",
       .sliding_window = 96,
       .window_layers = {true, true, true, true}},
      {.model_type = "qwen3", .sink_blocks = 0},
      {.model_type = "qwen3_moe", .num_experts = 12, .expert_ffn_dim = 64},
      {.num_layers = 5, .model_type = "smollm3", .attention_bias = true},
      {.num_layers = 3, .model_type = "smollm3", .tied = false},
      {.num_layers = 7, .model_type = "gemma3_text", .sliding_window = 96},
      {.num_layers = 5,
       .model_type = "gemma3_text",
       .sliding_window = 96,
       .window_layers = {true, false, true, false, true},
       .tied = false},
      {.num_layers = 2,
       .model_type = "gemma3_text",
       .sliding_window = 96,
       .window_layers = {true, true},
       .dtype = DType::kBFloat16},
  };
  for (const TinyModelOptions& options : models) {
    SCOPED_TRACE(options.model_type + (options.has_predictor ? " eta" : " plain"));
    const TinyModel model(options);
    const auto folder = Checkpoint::Open(model.path());
    ASSERT_TRUE(folder.ok()) << folder.status();
    const Checkpoint file = Exported(*folder);
    EXPECT_EQ(*ParseModelConfig(file.config_json()), *ParseModelConfig(folder->config_json()));
    ASSERT_EQ(file.tensors().size(), folder->tensors().size());
    for (const auto& [name, info] : folder->tensors()) {
      EXPECT_EQ(file.tensors().at(name).shape, info.shape) << name;
      const std::vector<float> values = Floats(*folder, name);
      EXPECT_EQ(Floats(file, name), IsRounded(name) ? RoundedByHand(values) : values) << name;
    }
    ASSERT_EQ(file.index_metric() != nullptr, folder->index_metric() != nullptr);
    if (file.index_metric() == nullptr) continue;
    for (const auto& [name, info] : folder->index_metric()->tensors()) {
      EXPECT_EQ(file.index_metric()->tensors().at(name).shape, info.shape) << name;
      EXPECT_EQ(Floats(*file.index_metric(), name), Floats(*folder->index_metric(), name)) << name;
    }
  }
}

TEST_F(GgufExportTest, AnAdaptedModelNamesItsFamily) {
  for (const char* family : {"llama", "qwen3", "smollm3"}) {
    const TinyModel plain({.num_layers = 4, .model_type = family});
    const TinyModel gated({.num_layers = 4});
    // The adapted one has the plain one's tensors and a predictor.
    const auto dense = Checkpoint::Open(plain.path());
    const auto eta = Checkpoint::Open(gated.path());
    ASSERT_TRUE(dense.ok() && eta.ok());
    std::map<std::string, std::vector<std::byte>> data;
    std::map<std::string, TensorToWrite> tensors;
    const auto take = [&](const Checkpoint& from, const std::string& name) {
      data[name] = *from.Read(name);
      tensors[name] = {from.tensors().at(name).dtype, from.tensors().at(name).shape, data[name]};
    };
    for (const auto& entry : dense->tensors()) take(*dense, entry.first);
    for (const auto& entry : eta->tensors()) {
      if (entry.first.find("tau_proj") != std::string::npos) take(*eta, entry.first);
    }
    ASSERT_TRUE(WriteSafetensors(plain.path() + "/model.safetensors", {}, tensors).ok());
    Change(plain.path(), {{"model_type", "eta"},
                          {"eta_family", family},
                          {"eta_gate", "silu"},
                          {"eta_beta", 4.75},
                          {"eta_index", "outlier"}});
    const auto adapted = Checkpoint::Open(plain.path()).value();
    const Checkpoint file = Exported(adapted, GgmlType::kF32);
    EXPECT_EQ(*ParseModelConfig(file.config_json()), *ParseModelConfig(adapted.config_json()));
    EXPECT_EQ(Json::parse(file.config_json())["eta_family"], family);
    EXPECT_TRUE(ValidateTensors(*ParseModelConfig(file.config_json()), file.tensors()).ok());
    for (const auto& entry : adapted.tensors()) {
      EXPECT_EQ(Floats(file, entry.first), Floats(adapted, entry.first)) << entry.first;
    }
  }
}

TEST_F(GgufExportTest, AFileOfAFileIsTheSame) {
  for (const bool byte_level : {false, true}) {
    TinyGguf tiny;
    if (byte_level) UseByteLevelVocabulary(tiny.file);
    tiny.file.Set("tokenizer.chat_template", "{{ bos_token }}");
    tiny.file.Set("tokenizer.ggml.add_bos_token", true);
    tiny.file.Set("eta.index", "moment");
    tiny.file.Set("tokenizer.ggml.unknown_token_id", uint32_t{0});
    const auto first = Checkpoint::Open(Write("first.gguf", tiny.file.Serialize())).value();
    const Checkpoint second = Exported(first, GgmlType::kF32);
    Json config = Json::parse(first.config_json());
    Json read = Json::parse(second.config_json());
    for (const char* spelled_out :
         {"eta_sink_blocks", "eta_reads", "eta_special_keys", "eta_block_size"}) {
      EXPECT_EQ(read.erase(spelled_out), 1u);
    }
    EXPECT_EQ(read, config);
    EXPECT_EQ(second.tokenizer_files().tokenizer_json, first.tokenizer_files().tokenizer_json);
    EXPECT_EQ(second.tokenizer_files().sentencepiece_model,
              first.tokenizer_files().sentencepiece_model);
    EXPECT_EQ(second.tokenizer_files().tokenizer_config_json,
              first.tokenizer_files().tokenizer_config_json);
    EXPECT_EQ(second.chat_template(), first.chat_template());
    EXPECT_EQ(second.generation_config_json(), first.generation_config_json());
    for (const auto& entry : first.tensors()) {
      EXPECT_EQ(*second.Read(entry.first), *first.Read(entry.first)) << entry.first;
    }
  }
}

TEST_F(GgufExportTest, PiecesAndTheirScoresComeBack) {
  const TinyModel model;
  const auto folder = Checkpoint::Open(model.path()).value();
  const Checkpoint file = Exported(folder);
  const auto wanted = ParsePieceTable(*folder.tokenizer_files().sentencepiece_model);
  const auto read = ParsePieceTable(*file.tokenizer_files().sentencepiece_model);
  ASSERT_TRUE(wanted.ok() && read.ok()) << read.status();
  ASSERT_EQ(read->pieces.size(), wanted->pieces.size());
  for (size_t id = 0; id < wanted->pieces.size(); ++id) {
    EXPECT_EQ(read->pieces[id].text, wanted->pieces[id].text);
    EXPECT_EQ(read->pieces[id].score, wanted->pieces[id].score);
    EXPECT_EQ(read->pieces[id].type, wanted->pieces[id].type);
  }
  EXPECT_EQ(read->add_dummy_prefix, wanted->add_dummy_prefix);
  EXPECT_EQ(read->byte_fallback, wanted->byte_fallback);
  EXPECT_EQ(read->bos_id, wanted->bos_id);
  EXPECT_EQ(read->eos_id, wanted->eos_id);
}

TEST_F(GgufExportTest, RopeScalingComesBack) {
  for (const char* scaling :
       {R"({"rope_type": "linear", "factor": 4.0})",
        R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192})",
        R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256,
            "beta_fast": 16.0, "beta_slow": 2.0})"}) {
    const TinyModel model({.has_predictor = false});
    Change(model.path(), {{"rope_scaling", Json::parse(scaling)}, {"rope_theta", 500000.0}});
    const auto folder = Checkpoint::Open(model.path()).value();
    const Checkpoint file = Exported(folder);
    EXPECT_EQ(*ParseModelConfig(file.config_json()), *ParseModelConfig(folder.config_json()));
  }
}

TEST_F(GgufExportTest, TypesAreWhatWasAskedFor) {
  const TinyModel model;
  const auto folder = Checkpoint::Open(model.path()).value();
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  for (const auto& [type, dtype] :
       {std::pair(GgmlType::kF16, DType::kFloat16), std::pair(GgmlType::kBF16, DType::kBFloat16),
        std::pair(GgmlType::kF32, DType::kFloat32), std::pair(GgmlType::kQ8_0, DType::kFloat32)}) {
    const Checkpoint file = Exported(folder, type);
    EXPECT_EQ(file.tensors().at(name).dtype, dtype);
    EXPECT_EQ(file.tensors().at("model.norm.weight").dtype, DType::kFloat32);
  }
}

TEST_F(GgufExportTest, ImportedItIsTheSameFolder) {
  const TinyModel model({.index = "outlier", .index_metric = true});
  const auto folder = Checkpoint::Open(model.path()).value();
  const Checkpoint file = Exported(folder, GgmlType::kF32);
  ASSERT_TRUE(WriteCheckpoint(file, Path("imported"), std::nullopt).ok());
  const auto imported = Checkpoint::Open(Path("imported")).value();
  for (const auto& entry : folder.tensors()) {
    EXPECT_EQ(*imported.Read(entry.first), *folder.Read(entry.first)) << entry.first;
  }
  ASSERT_NE(imported.index_metric(), nullptr);
  for (const auto& entry : folder.index_metric()->tensors()) {
    EXPECT_EQ(*imported.index_metric()->Read(entry.first),
              *folder.index_metric()->Read(entry.first));
  }
}

// bad input: eta-eval | export-gguf: scaling, windows, ends, tokenizers, experts that a GGUF file
//   has no key for | exit code 2, field named; nothing is written
TEST_F(GgufExportTest, WhatTheFormatCannotSayIsRefusedByName) {
  const TinyModel model({.has_predictor = false});
  const auto open = [&] { return *Checkpoint::Open(model.path()); };
  Change(model.path(), {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}});
  ExpectRefused(open(), "rope_scaling of type dynamic");
  Change(model.path(),
         {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"attention_factor", 0.5}}}});
  ExpectRefused(open(), "such as rope_scaling");
  Change(model.path(), {{"rope_scaling", nullptr}, {"eos_token_id", {2, 3, 4, 5}}});
  ExpectRefused(open(), "eos_token_id 5 has no key");
  Change(model.path(), {{"eos_token_id", 2}});
  std::filesystem::remove(model.path() + "/tokenizer.model");
  ExpectRefused(open(), "the model has no tokenizer");
  const TinyModel unnormed(
      {.model_type = "qwen3_moe", .num_experts = 4, .normalise_experts = false});
  ExpectRefused(*Checkpoint::Open(unnormed.path()), "norm_topk_prob false has no place");
  const TinyModel mixed({.model_type = "qwen3_moe", .num_experts = 4, .dense_layers = 1});
  ExpectRefused(*Checkpoint::Open(mixed.path()), "mlp_only_layers and decoder_sparse_step");
  const TinyModel other({.num_layers = 4, .model_type = "smollm3"});
  for (const Json& layers : {Json{1, 1, 1, 1}, Json{1, 1, 0, 1}, Json{1, 0, 1, 0}}) {
    Change(other.path(), {{"no_rope_layers", layers}});
    ExpectRefused(*Checkpoint::Open(other.path()), "no_rope_layers but every fourth");
  }
}

// bad input: eta-eval | export-gguf: a scale of queries, or windows without a period, of Gemma 3 |
//   exit code 2, field named; nothing is written
TEST_F(GgufExportTest, WhatFollowsFromAnArchitectureMustFollow) {
  const TinyModel gemma({.num_layers = 4, .model_type = "gemma3_text", .sliding_window = 96});
  Change(gemma.path(), {{"query_pre_attn_scalar", 40}});
  ExpectRefused(*Checkpoint::Open(gemma.path()), "query_pre_attn_scalar but 32 has no place");
  const char* full = "full_attention";
  const char* slides = "sliding_attention";
  Change(gemma.path(),
         {{"query_pre_attn_scalar", 32}, {"layer_types", {full, slides, slides, full}}});
  ExpectRefused(*Checkpoint::Open(gemma.path()), "layer_types without a period");
}

TEST_F(GgufExportTest, GptOssIsReadAndNotWritten) {
  const TinyGguf tiny({.architecture = "gpt-oss"});
  ExpectRefused(*Checkpoint::Open(Write("first.gguf", tiny.file.Serialize())),
                "model_type 'gpt_oss' is read from GGUF files, not written");
}

TEST_F(GgufExportTest, PartsOfATokenizerWithoutAKeyAreNamed) {
  TinyGguf tiny;
  UseByteLevelVocabulary(tiny.file);
  const auto first = Checkpoint::Open(Write("first.gguf", tiny.file.Serialize())).value();
  const Json json = Json::parse(*first.tokenizer_files().tokenizer_json);
  const auto refused = [&](const std::function<void(Json&)>& change, const std::string& cause) {
    Json changed = json;
    change(changed);
    GgufHead head;
    GgufTokens tokens;
    EXPECT_THAT(std::string(SetByteLevelKeys(changed.dump(), tokens, head).message()),
                HasSubstr(cause));
  };
  refused([](Json& j) { j["normalizer"] = {{"type", "Lowercase"}}; }, "normalizer 'Lowercase'");
  refused(
      [](Json& j) {
        j["pre_tokenizer"] = {{"type", "Metaspace"}};
      },
      "pre_tokenizer 'Metaspace'");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"].erase(1); },
          "cuts as none that has a name");
  refused([](Json& j) { j["model"]["type"] = "Unigram"; }, "is not byte-level BPE");
  refused([](Json& j) { j["model"]["unk_token"] = "<none>"; }, "model.unk_token is not in the");
  refused([](Json& j) { j["model"]["unk_token"] = 1; }, "model.unk_token is not in the");
  refused([](Json& j) { j["model"]["vocab"]["the"] = -1; }, "'the' has an id that is none");
  refused([](Json& j) { j["model"]["vocab"]["the"] = 1e18; }, "'the' has an id that is none");
  refused([](Json& j) { j["model"]["merges"] = {1}; }, "merges must be pairs");
  refused([](Json& j) { j["added_tokens"][0]["lstrip"] = true; }, "lstrip has no key");
  refused([](Json& j) { j["post_processor"] = {{"type", "BertProcessing"}}; }, "post_processor");
}

TEST_F(GgufExportTest, TheUnknownTokenIsTheModelsOwn) {
  TinyGguf tiny;
  UseByteLevelVocabulary(tiny.file);
  const auto first = Checkpoint::Open(Write("first.gguf", tiny.file.Serialize())).value();
  TokenizerFiles files = first.tokenizer_files();
  files.tokenizer_config_json = R"({"pad_token":"<|pad|>","unk_token":"<tool>"})";
  const auto bytes = [&files](const char* unknown) {
    GgufHead head;
    Json json = Json::parse(*files.tokenizer_json);
    if (unknown != nullptr) json["model"]["unk_token"] = unknown;
    files.tokenizer_json = json.dump();
    const absl::Status status = SetTokenizerKeys(files, 264, {}, head);
    EXPECT_TRUE(status.ok()) << status;
    return head.Bytes();
  };
  constexpr char kKey[] = "tokenizer.ggml.unknown_token_id";
  EXPECT_THAT(bytes(nullptr), Not(HasSubstr(kKey)))
      << "what tokenizer_config.json says is not used";
  EXPECT_THAT(bytes("<tool>"), HasSubstr(kKey));
}

// As Hugging Face writes the same cuts and merges.
TEST_F(GgufExportTest, OtherSpellingsOfTheSameTokenizerAreUnderstood) {
  TinyGguf tiny;
  UseByteLevelVocabulary(tiny.file);
  const auto first = Checkpoint::Open(Write("first.gguf", tiny.file.Serialize())).value();
  Json json = Json::parse(*first.tokenizer_files().tokenizer_json);
  GgufHead head;
  GgufTokens tokens;
  ASSERT_TRUE(SetByteLevelKeys(json.dump(), tokens, head).ok());
  json["pre_tokenizer"]["pretokenizers"] = {
      {{"type", "Digits"}, {"individual_digits", true}},
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}};
  json["model"]["merges"] = Json::parse(R"([["t", "h"], ["th", "e"], ["Ġ", "the"]])");
  json["post_processor"] = {{"type", "ByteLevel"}};
  GgufHead other_head;
  GgufTokens other;
  const absl::Status status = SetByteLevelKeys(json.dump(), other, other_head);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(other.texts, tokens.texts);
  EXPECT_EQ(other_head.Bytes(), head.Bytes());
}

// bad input: eta-eval | export-gguf: numbers that the type cannot hold | exit code 2, the tensor
//   named; nothing is written
TEST_F(GgufExportTest, NumbersThatATypeCannotHoldAreNamed) {
  TinyGguf tiny;
  const float large = 1e6f;
  std::memcpy(tiny.file.At("blk.0.attn_v.weight").data.data(), &large, sizeof(large));
  const auto checkpoint = Checkpoint::Open(Write("first.gguf", tiny.file.Serialize())).value();
  ExpectRefused(checkpoint, "'model.layers.0.self_attn.v_proj.weight': element 0", GgmlType::kF16);
}

}  // namespace
}  // namespace eta
