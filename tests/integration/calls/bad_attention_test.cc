// Attention that goes beyond the paper, asked for wrongly: of the built server with the model that
// comes with it, and of one with a plain checkpoint. Rows 132 to 138 of the table of bad inputs.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/special_floats.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/service/bad_input_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

v1::GenerateRequest With(const std::function<void(v1::Attention&)>& change) {
  v1::GenerateRequest request = Ask("x");
  request.mutable_stopping()->set_max_tokens(2);
  change(*request.mutable_attention());
  return request;
}

class BadAttentionTest : public BadInputTest {};

TEST_F(BadAttentionTest, NumbersOutsideTheirRanges) {
  for (const int32_t bad : {-1, 1025, std::numeric_limits<int32_t>::min()}) {
    EXPECT_EQ(BadField(With([bad](v1::Attention& a) { a.set_sink_blocks(bad); })),
              "attention.sink_blocks");
  }
  for (const float bad : {0.0f, -1.0f, 1.001f, kNaN}) {
    EXPECT_EQ(BadField(With([bad](v1::Attention& a) { a.set_min_mass(bad); })),
              "attention.min_mass");
  }
}

TEST_F(BadAttentionTest, WordsThatAreNotKnown) {
  EXPECT_EQ(BadField(With([](v1::Attention& a) { a.set_reads(static_cast<v1::Reads>(3)); })),
            "attention.reads");
  EXPECT_EQ(BadField(With(
                [](v1::Attention& a) { a.set_special_keys(static_cast<v1::SpecialKeys>(-1)); })),
            "attention.special_keys");
  EXPECT_EQ(BadField(With([](v1::Attention& a) { a.set_prefill(static_cast<v1::Prefill>(3)); })),
            "attention.prefill");
  EXPECT_EQ(BadField(With([](v1::Attention& a) {
              a.set_min_mass(0.5f);
              a.set_begin(static_cast<v1::Begin>(4));
            })),
            "attention.begin");
}

TEST_F(BadAttentionTest, ABeginningWithoutALeastMass) {
  EXPECT_EQ(BadField(With([](v1::Attention& a) { a.set_begin(v1::BEGIN_FULL); })),
            "attention.begin");
}

TEST_F(BadAttentionTest, WhatFullAttentionDoesNotRead) {
  const auto full = [this](const std::function<void(v1::Attention&)>& change) {
    return BadField(With([&](v1::Attention& a) {
      a.mutable_full();
      change(a);
    }));
  };
  EXPECT_EQ(full([](v1::Attention& a) { a.set_sink_blocks(0); }), "attention.sink_blocks");
  EXPECT_EQ(full([](v1::Attention& a) { a.set_reads(v1::READS_OWN); }), "attention.reads");
  EXPECT_EQ(full([](v1::Attention& a) { a.set_confirm(false); }), "attention.confirm");
  EXPECT_EQ(full([](v1::Attention& a) { a.set_prefill(v1::PREFILL_FULL); }), "attention.prefill");
  EXPECT_EQ(full([](v1::Attention& a) { a.set_min_mass(0.5f); }), "attention.min_mass");
  EXPECT_EQ(full([](v1::Attention& a) { a.set_begin(v1::BEGIN_AS_ASKED); }), "attention.begin");
  EXPECT_EQ(full([](v1::Attention& a) { a.set_special_keys(v1::SPECIAL_KEYS_TEMPER); }), "code 0");
}

ServerProcess Serve(const std::string& model, const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--model",         model,  "--listen", "127.0.0.1:0",
                                    "--kv_pool_bytes", "64MiB"};
  flags.insert(flags.end(), more.begin(), more.end());
  return {ETA_BINARY_DIR "/eta-server", flags};
}

TEST(BadPlainAttention, WhatAModelWithoutAGateDoesNotHave) {
  const TinyModel model({.has_predictor = false});
  ServerProcess server = Serve(model.path());
  const auto stub = v1::EtaService::NewStub(
      grpc::CreateChannel(server.AwaitAddress(), grpc::InsecureChannelCredentials()));
  const auto answer = [&](const std::function<void(v1::Attention&)>& change) {
    ClientCall call(*stub);
    call.Start(With(change));
    call.ReadText();
    return call.Finish();
  };
  const grpc::Status temper =
      answer([](v1::Attention& a) { a.set_special_keys(v1::SPECIAL_KEYS_TEMPER); });
  EXPECT_EQ(temper.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(temper), "UNSUPPORTED_BY_MODEL");
  EXPECT_THAT(temper.error_message(), HasSubstr("attention.special_keys"));
  const grpc::Status z = answer([](v1::Attention& a) { a.set_z(1.0f); });
  EXPECT_EQ(z.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FieldOf(z), "attention.z");
  EXPECT_TRUE(answer([](v1::Attention& a) { a.set_sink_blocks(2); }).ok());
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit().code, 0);

  ServerProcess moment = Serve(model.path(), {"--index", "moment"});
  const auto without = v1::EtaService::NewStub(
      grpc::CreateChannel(moment.AwaitAddress(), grpc::InsecureChannelCredentials()));
  ClientCall call(*without);
  call.Start(With([](v1::Attention& a) { a.mutable_dynamic(); }));
  call.ReadText();
  const grpc::Status dynamic = call.Finish();
  EXPECT_EQ(dynamic.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(dynamic.error_message(), HasSubstr("--index=outlier"));
  moment.Signal(SIGTERM);
  EXPECT_EQ(moment.AwaitExit().code, 0);
}

void ExpectBadStart(const std::string& model, const std::vector<std::string>& flags,
                    const std::string& cause) {
  ServerProcess server = Serve(model, flags);
  EXPECT_EQ(server.AwaitAddress(), "") << "it listens";
  server.Signal(SIGTERM);  // otherwise a server that took the model would stay
  const ServerProcess::Exit exit = server.AwaitExit();
  EXPECT_EQ(exit.code, 2);
  EXPECT_THAT(exit.errors, HasSubstr(cause));
}

TEST(BadAttentionStart, FieldsOfTheConfig) {
  const std::tuple<const char*, nlohmann::json, std::string> cases[] = {
      {"eta_index", "mean", "eta_index 'mean' is not supported, only moment and outlier"},
      {"eta_sink_blocks", 1025, "eta_sink_blocks must be a whole number from 0 to 1024"},
      {"eta_reads", "all", "eta_reads 'all' is not supported, only own and shared"},
      {"eta_special_keys", 1, "eta_special_keys"},
      {"eta_special_keys", "temper", "eta_special_keys must be attend: the model has no gate"}};
  const TinyModel model({.has_predictor = false});
  const std::string path = model.path() + "/config.json";
  const std::string original = ReadFile(path);
  for (const auto& [field, value, cause] : cases) {
    nlohmann::json config = nlohmann::json::parse(original);
    config[field] = value;
    std::ofstream(path) << config.dump();
    ExpectBadStart(model.path(), {}, "config.json: " + cause);
  }
}

TEST(BadAttentionStart, AnIndexMetricThatDoesNotFit) {
  const TinyModel model({.has_predictor = false, .index_metric = true});
  const std::string path = model.path() + "/index_metric.safetensors";
  const auto change = [&](const std::string& name, std::vector<int64_t> shape,
                          const std::vector<float>& values) {
    const auto file = SafetensorsFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    std::map<std::string, std::vector<std::byte>> bytes;
    std::map<std::string, TensorToWrite> tensors;
    for (const auto& [other, info] : file->tensors()) {
      bytes[other] = *file->Read(other);
      tensors[other] = {info.dtype, info.shape, bytes[other]};
    }
    tensors[name] = {DType::kFloat32, std::move(shape), std::as_bytes(std::span(values))};
    ASSERT_TRUE(WriteSafetensors(path, {}, tensors).ok());
  };
  const std::string original = ReadFile(path);
  const auto restore = [&] { std::ofstream(path, std::ios::binary) << original; };

  change("layers.0.centre", {64}, std::vector<float>(64, 0.0f));
  ExpectBadStart(model.path(), {}, "'layers.0.centre' has shape [64], the model's is [2, 32]");
  restore();
  change("layers.9.centre", {2, 32}, std::vector<float>(64, 0.0f));
  ExpectBadStart(model.path(), {}, "'layers.9.centre' is not expected");
  restore();
  change("layers.0.centre", {2, 32}, std::vector<float>(64, kNaN));
  ExpectBadStart(model.path(), {}, "'layers.0.centre' is NaN or infinite at element 0");
  restore();
  std::vector<float> lopsided(2 * 32 * 32, 0.0f);
  lopsided[1] = 1.0f;
  change("layers.1.metric", {2, 32, 32}, lopsided);
  ExpectBadStart(model.path(), {}, "'layers.1.metric' is not symmetric");
  restore();
  std::filesystem::resize_file(path, 100);
  ExpectBadStart(model.path(), {}, "'index_metric.safetensors'");
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/etc/passwd", path);
  ExpectBadStart(model.path(), {}, "'index_metric.safetensors' is a link to outside");
}

TEST(BadAttentionStart, KindsAndFormatsOfTheIndex) {
  const TinyModel model({.has_predictor = false});
  ExpectBadStart(model.path(), {"--index", "mean"}, "--index");
  ExpectBadStart(model.path(), {"--index_dtype", "float16"},
                 "index_dtype: an index of kind outlier holds int8");
}

TEST(BadAttentionStart, AShadowRateThatIsNoShare) {
  const TinyModel model;
  for (const char* rate : {"none", "-0.1", "1.5", "nan"}) {
    ExpectBadStart(model.path(), {"--shadow_rate", rate}, "--shadow_rate");
  }
}

}  // namespace
}  // namespace eta::testing
