// eta-bench at tiny sizes on the CPU. It checks itself, and its JSON has the fields that others
// read, with consistent values.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/testing/process/bench_run.h"

namespace eta::testing {
namespace {

nlohmann::json Report(const std::string& arguments) {
  const BenchRun result = RunBench(arguments + " --samples=2 --json");
  EXPECT_EQ(result.code, 0);
  nlohmann::json report = nlohmann::json::parse(result.output, nullptr, false);
  EXPECT_FALSE(report.is_discarded()) << result.output;
  return report;
}

void ExpectNumbers(const nlohmann::json& row, const std::vector<const char*>& fields) {
  for (const char* field : fields) {
    ASSERT_TRUE(row.contains(field)) << field;
    EXPECT_TRUE(row[field].is_number()) << field;
    EXPECT_GT(row[field].get<double>(), 0.0) << field;
  }
}

TEST(EtaBench, AttentionReachesTheDensitiesAskedFor) {
  const nlohmann::json report = Report(
      "attention --backend=cpu --batch=2,3 --context=4096,2048 --heads=8 --kv_heads=2 "
      "--head_dim=32 --density=1,0.5,0.25 --iterations=2 --check_context=1000");
  EXPECT_EQ(report["bench"], "attention");
  EXPECT_GT(report["read_tb_per_s"].get<double>(), 0.0);
  ASSERT_EQ(report["checks"].size(), 2u);
  for (const nlohmann::json& check : report["checks"]) {
    ExpectNumbers(check, {"largest_error", "relative_error"});
    EXPECT_LT(check["relative_error"].get<double>(), 1e-3);
  }
  ASSERT_EQ(report["rows"].size(), 6u);
  for (const nlohmann::json& row : report["rows"]) {
    ExpectNumbers(row, {"batch", "context", "union_density", "head_density", "microseconds",
                        "select_microseconds", "attend_microseconds", "bytes", "tb_per_s",
                        "percent_of_read", "limit_microseconds", "speedup_over_full"});
    EXPECT_NEAR(row["union_density"].get<double>(), row["density"].get<double>(), 0.04);
    EXPECT_LE(row["head_density"].get<double>(), row["union_density"].get<double>());
  }
}

TEST(EtaBench, ReplaysAnswersWithoutAndWithDrafts) {
  const nlohmann::json report = Report(
      "replay --cases=1 --context=512 --answer=48 --streams=1,2 --threads=1"
      " --model=" ETA_SOURCE_DIR "/models/eta-27m --text=" ETA_SOURCE_DIR
      "/deploy/samples/needle.txt --code=" ETA_SOURCE_DIR "/engine/batching/scheduler.cc");
  EXPECT_EQ(report["bench"], "replay");
  ASSERT_EQ(report["rows"].size(), 4u) << "quote, edit and free of one stream, and all mixed";
  for (const nlohmann::json& row : report["rows"]) {
    ExpectNumbers(row, {"tokens", "tokens_per_s", "drafts_tokens_per_s", "speedup"});
    EXPECT_EQ(row["answers_that_differ"], 0);
    EXPECT_LE(row["accepted"].get<int64_t>(), row["drafted"].get<int64_t>());
  }
  EXPECT_EQ(report["rows"][0]["kind"], "quote");
  EXPECT_GT(report["rows"][0]["acceptance"].get<double>(), 0.7) << "it stands in the prompt";
  EXPECT_GT(report["rows"][0]["tokens_per_step"].get<double>(), 2.0);
}

TEST(EtaBench, MasksTellWhatTheHostTakesOfAStep) {
  if (RunBench("masks --help").code != 0) GTEST_SKIP() << "built without formats of answers";
  const nlohmann::json report = Report(
      "masks --streams=4 --bound=2 --device_microseconds=500 --context=20 --answer=24 --turns=1"
      " --model=" ETA_SOURCE_DIR "/models/eta-27m");
  ASSERT_EQ(report["rows"].size(), 2u) << "without formats, and with them";
  for (const nlohmann::json& row : report["rows"]) {
    ExpectNumbers(row, {"steps", "step_microseconds", "p90_microseconds", "host_microseconds"});
    EXPECT_GT(row["step_microseconds"].get<double>(), 500.0);
  }
}

TEST(EtaBench, CountsTheBytesOfEightBits) {
  const std::string shape =
      " --backend=reference --batch=2 --context=1024 --heads=4 --kv_heads=2 --head_dim=64 "
      "--density=1,0.5 --iterations=1 --check_context=300";
  const nlohmann::json wide = Report("attention" + shape);
  const nlohmann::json narrow =
      Report("attention --kv_dtype=float8_e4m3 --index_dtype=int8" + shape);
  ASSERT_EQ(wide["rows"].size(), 2u);
  ASSERT_EQ(narrow["rows"].size(), 2u);
  // 2 rows of 16 full blocks, 2 KV heads.
  EXPECT_EQ(wide["rows"][0]["bytes"].get<double>(), 2 * 16 * 2 * 16384.0);
  EXPECT_EQ(narrow["rows"][0]["bytes"].get<double>(), 2 * 16 * 2 * 8320.0);
  const nlohmann::json& sparse = narrow["rows"][1];
  EXPECT_EQ(sparse["bytes"].get<double>(),
            sparse["union_density"].get<double>() * 2 * 16 * 2 * 8320.0 + 2 * 16 * 2 * 144.0);
  EXPECT_EQ(sparse["kv_dtype"], "float8_e4m3");
  EXPECT_EQ(sparse["index_dtype"], "int8");
}

TEST(EtaBench, DecodeForcesTheUnionDensity) {
  const nlohmann::json report = Report(
      "decode --backend=cpu --layers=2 --width=64 --ffn=96 --vocab=256 --heads=8 --kv_heads=2 "
      "--head_dim=16 --block=16 --batch=3 --context=2048 --density=1,0.4");
  ASSERT_EQ(report["rows"].size(), 2u);
  for (const nlohmann::json& row : report["rows"]) {
    ExpectNumbers(row, {"milliseconds", "wall_milliseconds", "union_density", "bytes",
                        "limit_milliseconds", "times_limit", "tokens_per_s", "speedup_over_full"});
    EXPECT_NEAR(row["union_density"].get<double>(), row["density"].get<double>(), 0.01);
  }
  ExpectNumbers(report["model"], {"weight_bytes_per_step"});
}

TEST(EtaBench, DecodeCountsBlocksOnceForRowsOfOneSequence) {
  const std::string shape =
      "decode --backend=cpu --layers=1 --width=64 --ffn=96 --vocab=256 --heads=8 --kv_heads=2 "
      "--head_dim=16 --block=16 --batch=2 --context=512 --density=1";
  const nlohmann::json one = Report(shape)["rows"][0];
  const nlohmann::json three = Report(shape + " --rows_per_sequence=3")["rows"][0];
  EXPECT_EQ(three["bytes"], one["bytes"]);
  EXPECT_EQ(three["union_density"].get<double>(), 1.0);
}

TEST(EtaBench, DecodeReadsTheExpertsThatRowsChoose) {
  const nlohmann::json report = Report(
      "decode --backend=cpu --layers=2 --width=64 --vocab=256 --heads=8 --kv_heads=2 "
      "--head_dim=16 --block=16 --batch=1,3 --context=256 --density=1 --experts=12 "
      "--experts_per_token=4 --expert_ffn=32");
  ASSERT_EQ(report["rows"].size(), 2u);
  const double expert_bytes = 3 * 64 * 32 * 2.0;
  EXPECT_EQ(report["model"]["expert_bytes"].get<double>(), expert_bytes);
  EXPECT_EQ(report["rows"][0]["experts_read_per_layer"].get<double>(), 4.0);
  EXPECT_GE(report["rows"][1]["experts_read_per_layer"].get<double>(), 4.0);
  for (const nlohmann::json& row : report["rows"]) {
    EXPECT_EQ(row["bytes"].get<double>(),
              report["model"]["weight_bytes_per_step"].get<double>() +
                  2 * row["experts_read_per_layer"].get<double>() * expert_bytes +
                  row["kv_bytes"].get<double>());
  }
}

TEST(EtaBench, DecodeCountsExpertsAsTheyAreKept) {
  const std::string shape =
      "decode --backend=cpu --layers=1 --width=64 --vocab=256 --heads=8 --kv_heads=2 "
      "--head_dim=16 --block=16 --batch=2 --context=256 --density=1 --experts=8 "
      "--experts_per_token=2 --expert_ffn=64";
  const auto bytes = [&](const std::string& weights) {
    return Report(shape + " --weights=" + weights)["model"]["expert_bytes"].get<double>();
  };
  const double native = bytes("native");
  EXPECT_LT(bytes("int8"), 0.6 * native);
  EXPECT_LT(bytes("int4"), bytes("int8"));
  EXPECT_GT(bytes("float8"), 0.0);
}

TEST(EtaBench, DecodeCountsWhatWindowsRead) {
  const nlohmann::json report = Report(
      "decode --backend=cpu --layers=5 --width=64 --ffn=96 --vocab=256 --heads=4 --kv_heads=2 "
      "--head_dim=32 --block=16 --batch=3 --context=2048 --density=1,0.4 --window=100 "
      "--window_period=2");
  ASSERT_EQ(report["rows"].size(), 2u);
  EXPECT_EQ(report["model"]["full_layers"], 2);
  const double token_bytes = 2 * 2 * 32 * 2.0;  // two KV heads
  for (const nlohmann::json& row : report["rows"]) {
    const bool full = row["kind"] == "full";
    EXPECT_NEAR(row["union_density"].get<double>(), row["density"].get<double>(), 0.01);
    EXPECT_EQ(row["window_bytes"].get<double>(), 3 * 3 * 100 * token_bytes);
    // Rows of 2047, 2046 and 2045 tokens; records of 127 full blocks each.
    EXPECT_EQ(row["kv_bytes"].get<double>(), 2 * (2047 + 2046 + 2045) * token_bytes);
    const double record_bytes = full ? 0.0 : 2 * 3 * 127 * 2 * (2 * 32 * 2 + 4.0);
    EXPECT_NEAR(
        row["bytes"].get<double>(),
        report["model"]["weight_bytes_per_step"].get<double>() + row["window_bytes"].get<double>() +
            row["union_density"].get<double>() * row["kv_bytes"].get<double>() + record_bytes,
        1.0);
  }
}

TEST(EtaBench, PrefillReportsAttentionAndIndex) {
  const nlohmann::json report = Report(
      "prefill --backend=cpu --heads=4 --kv_heads=2 --head_dim=32 --block=32 --tokens=128,300 "
      "--chunk=100");
  ASSERT_EQ(report["rows"].size(), 2u);
  for (const nlohmann::json& row : report["rows"]) {
    ExpectNumbers(row, {"tokens", "chunk", "attention_microseconds", "tflops",
                        "append_microseconds", "append_without_index_microseconds"});
    EXPECT_GE(row["index_percent"].get<double>(), 0.0);
  }
}

TEST(EtaBench, TextTellsOfPromptsAndOfDecodeSteps) {
  const nlohmann::json report =
      Report("text --model=" ETA_SOURCE_DIR "/models/eta-27m --text=" ETA_SOURCE_DIR
             "/deploy/samples/needle.txt --context=256 --steps=2");
  ASSERT_EQ(report["prompts"].size(), 1u);
  ExpectNumbers(report["prompts"][0], {"tokens", "tokens_per_s", "gflops", "full_seconds",
                                       "sparse_seconds", "select_seconds", "density", "speedup"});
  ASSERT_EQ(report["decode"].size(), 1u);
  for (const char* mode : {"full", "sparse"}) {
    ExpectNumbers(report["decode"][0][mode],
                  {"tokens_per_s", "attention_share", "head_density", "union_density"});
  }
  EXPECT_EQ(report["decode"][0]["full"]["union_density"], 1.0);
  EXPECT_LT(report["decode"][0]["sparse"]["union_density"], 1.0);
}

TEST(EtaBench, TokenizerPrintsATable) {
  const BenchRun result = RunBench("tokenizer --tokenizer=" ETA_SOURCE_DIR
                                   "/models/eta-27m/tokenizer.model --text=" ETA_SOURCE_DIR
                                   "/deploy/samples/needle.txt --rounds=2");
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.output.find("known"), std::string::npos);
}

TEST(EtaBench, PrintsATable) {
  const BenchRun result = RunBench(
      "prefill --backend=cpu --heads=2 --kv_heads=1 --head_dim=16 --tokens=64 --samples=1");
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.output.find("TFLOP/s"), std::string::npos);
}

TEST(EtaBench, ObserveTellsWhatCountingCosts) {
  if (RunBench("observe --help").code != 0) GTEST_SKIP() << "built without the service";
  const nlohmann::json report =
      Report("observe --layers=3 --heads=8 --kv_heads=2 --rows=5 --series=1,5 --profiles=3,7");
  ASSERT_EQ(report["steps"].size(), 2u);
  for (const nlohmann::json& step : report["steps"]) {
    ExpectNumbers(step, {"series", "microseconds", "share_of_step"});
  }
  ASSERT_EQ(report["pages"].size(), 2u);
  EXPECT_EQ(report["pages"][0]["profiles"], 3);
  EXPECT_EQ(report["pages"][1]["profiles"], 7);
  for (const nlohmann::json& page : report["pages"]) {
    ExpectNumbers(page, {"profiles", "megabytes", "milliseconds"});
  }
}

TEST(EtaBench, RefusesWhatItCannotDo) {
  EXPECT_NE(RunBench("attention --heads=7 --kv_heads=2 2>/dev/null").code, 0);
  EXPECT_NE(RunBench("attention --backend=nonesuch 2>/dev/null").code, 0);
  EXPECT_NE(RunBench("attention --context=4096,2048 --batch=1,2,3 2>/dev/null").code, 0);
  EXPECT_NE(RunBench("attention --backend=cpu --kv_dtype=float8_e4m3 2>/dev/null").code, 0);
  EXPECT_NE(RunBench("decode --backend=cpu --index_dtype=int8 2>/dev/null").code, 0);
  EXPECT_NE(RunBench("decode --window=64 --experts=8 2>/dev/null").code, 0);
  EXPECT_NE(RunBench("decode --window=64 --layers=3 2>/dev/null").code, 0);
  EXPECT_NE(RunBench("serve --chats=/dev/null --requests=1 2>/dev/null").code, 0);
  EXPECT_NE(RunBench("2>/dev/null").code, 0);
}

TEST(EtaBench, BackgroundTellsWhatStreamsFeelOfPasses) {
  const nlohmann::json report = Report("background --model=" ETA_SOURCE_DIR
                                       "/models/eta-27m --streams=2 --prompt_tokens=16 "
                                       "--pass_tokens=100 --turns=1 --seconds=0.2");
  EXPECT_EQ(report["bench"], "background");
  ASSERT_EQ(report["between_tokens_milliseconds"].size(), 2u);
  for (const nlohmann::json& row : report["between_tokens_milliseconds"]) {
    ExpectNumbers(row, {"tokens", "p50", "p90", "p99", "p99.9", "max"});
    EXPECT_LE(row["p50"].get<double>(), row["max"].get<double>());
  }
  ExpectNumbers(report, {"p99_ratio"});
  EXPECT_LE(report["pass_share_of_steps"].get<double>(), 0.3);
  EXPECT_GE(report["pass_rows_per_s_alone"].get<double>(), 0.0);
}

}  // namespace
}  // namespace eta::testing
