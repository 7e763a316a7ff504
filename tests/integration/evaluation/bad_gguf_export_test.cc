// The built eta-eval refuses to write a GGUF file that it cannot write, and to read one whose
// additions of this project are damaged, in one line with exit code 2.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/calibration/evaluation_fixture.h"
#include "tests/testing/engine/tiny_gguf.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using ::testing::HasSubstr;
using testing::TinyGguf;
using testing::TinyModel;

class BadGgufExportTest : public EvaluationTest {
 protected:
  void Refused(const std::string& arguments, const std::string& named) {
    const std::string errors = Path("errors.txt");
    const int status = std::system(
        (ETA_BINARY_DIR "/eta-eval " + arguments + " > /dev/null 2> " + errors).c_str());
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 2) << arguments;
    std::stringstream text;
    text << std::ifstream(errors).rdbuf();
    EXPECT_THAT(text.str(), HasSubstr(named)) << arguments;
    EXPECT_EQ(std::ranges::count(text.str(), '\n'), 1) << text.str();
  }
  void RefusedToRead(const std::function<void(GgufWriter&)>& change, const std::string& named) {
    TinyGguf tiny;
    change(tiny.file);
    Refused("import " + Write("bad.gguf", tiny.file.Serialize()) + " " + Path("out"), named);
    EXPECT_FALSE(std::filesystem::exists(Path("out")));
  }

  TinyModel model_;
};

// bad input: eta-eval | export-gguf: bad arguments, an output that is there | exit code 2, named;
//   nothing is replaced
TEST_F(BadGgufExportTest, ArgumentsThatAreNone) {
  Refused("export-gguf", "MODEL");
  Refused("export-gguf " + model_.path(), "OUT");
  Refused("export-gguf /nowhere " + Path("a.gguf"), "checkpoint");
  Refused("export-gguf " + model_.path() + " " + Path("a.gguf") + " --dtype=q4_0", "--dtype");
  Refused("export-gguf " + model_.path() + " " + Path("no/such/a.gguf"), "cannot be created");
  EXPECT_FALSE(std::filesystem::exists(Path("a.gguf")));
}

TEST_F(BadGgufExportTest, AFileThatIsThereIsNotReplaced) {
  const std::string path = Write("mine.gguf", "kept");
  Refused("export-gguf " + model_.path() + " " + path, "is there already");
  EXPECT_EQ(ReadFile(path), "kept");
}

// bad input: eta-eval | export-gguf: a damaged model | exit code 2, named; nothing is written
TEST_F(BadGgufExportTest, ADamagedModelIsNotWritten) {
  std::filesystem::remove(model_.path() + "/model.safetensors");
  Refused("export-gguf " + model_.path() + " " + Path("a.gguf"), "model.safetensors");
  EXPECT_FALSE(std::filesystem::exists(Path("a.gguf")));
}

TEST_F(BadGgufExportTest, KeysThatMakeNoSenseAreNamed) {
  RefusedToRead([](auto& file) { file.Set("eta.smuggled", "x"); }, "'eta.smuggled' is not known");
  RefusedToRead([](auto& file) { file.Set("eta.family", uint32_t{1}); },
                "'eta.family' must be a text");
  RefusedToRead([](auto& file) { file.Set("eta.family", "qwen2"); },
                "'eta.family' 'qwen2' is not the family of the file, llama");
  RefusedToRead([](auto& file) { file.Set("eta.gate", "silu"); },
                "'eta.gate' is there without eta.family");
  RefusedToRead([](auto& file) { file.Set("eta.beta", 5.0f); },
                "'eta.beta' is there without eta.family");
  RefusedToRead([](auto& file) { file.Set("eta.index", true); }, "'eta.index' must be a text");
  RefusedToRead([](auto& file) { file.Set("eta.index", "best"); }, "eta_index 'best'");
  RefusedToRead([](auto& file) { file.Set("eta.reads", "all"); }, "eta_reads 'all'");
  RefusedToRead([](auto& file) { file.Set("eta.sink_blocks", 1.5f); },
                "'eta.sink_blocks' must be one whole number");
  RefusedToRead([](auto& file) { file.Set("eta.sink_blocks", uint32_t{1025}); },
                "eta_sink_blocks must be a whole number from 0 to 1024");
  RefusedToRead([](auto& file) { file.Set("eta.block_size", uint32_t{3}); }, "eta_block_size");
  RefusedToRead([](auto& file) { file.Set("eta.special_keys", "temper"); }, "eta_special_keys");
}

TEST_F(BadGgufExportTest, GatesThatMakeNoSenseAreNamed) {
  const auto gated = [](const char* gate, std::optional<float> beta) {
    return [=](GgufWriter& file) {
      file.Set("eta.family", "llama");
      file.Set("eta.gate", gate);
      if (beta) file.Set("eta.beta", *beta);
    };
  };
  RefusedToRead(gated("relu", 5.0f), "eta_gate 'relu'");
  RefusedToRead(gated("silu", std::nullopt), "eta_beta is missing");
  RefusedToRead(gated("silu", -1.0f), "eta_beta must be a number from");
  RefusedToRead(gated("silu", std::numeric_limits<float>::quiet_NaN()),
                "'eta.beta' must be a finite number");
  RefusedToRead(gated("silu", 5.0f), "'model.layers.0.self_attn.tau_proj.bias' is missing");
}

TEST_F(BadGgufExportTest, TensorsThatDoNotFitAreNamed) {
  const auto add = [](const std::string& name, std::vector<uint64_t> dimensions) {
    return [=](GgufWriter& file) {
      uint64_t count = 1;
      for (const uint64_t size : dimensions) count *= size;
      file.tensors.push_back({name, dimensions, 0, std::string(count * 4, '\0'), {}});
    };
  };
  RefusedToRead(add("eta.blk.0.tau.weight", {128, 4}), "tau_proj.weight' is not expected");
  RefusedToRead(add("eta.blk.0.tau.scale", {4}), "tensor 'eta.blk.0.tau.scale' is not known");
  RefusedToRead(add("eta.blk.x.index_metric", {4}), "tensor 'eta.blk.x.index_metric' is not known");
  RefusedToRead(add("blk.0.index_metric", {4}), "tensor 'blk.0.index_metric' is not known");
  RefusedToRead(add("eta.blk.0.index_metric", {32, 32, 2}),
                "index metric: tensor 'layers.0.centre' is missing");
  RefusedToRead(add("eta.blk.0.index_centre", {31, 2}),
                "index metric: tensor 'layers.0.centre' has shape [2, 31]");
}

}  // namespace
}  // namespace eta
