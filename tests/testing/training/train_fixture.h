// A test of the built eta-train, with a folder of its own and a toy model that trains in seconds.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/process/program_process.h"

namespace eta::testing {

class TrainProcess : public ProgramProcess {
 public:
  explicit TrainProcess(std::vector<std::string> arguments)
      : ProgramProcess("eta-train", std::move(arguments)) {}
};

using TrainFlags = std::map<std::string, std::string>;

class TrainCase : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string Write(const std::string& name, const std::string& contents) const {
    return folder_.Write(name, contents);
  }
  static std::string Sample() { return ETA_SOURCE_DIR "/deploy/samples/needle.txt"; }

  // What both commands take; `flags` replace these, and an empty value removes one.
  std::vector<std::string> Arguments(const std::string& command, TrainFlags defaults,
                                     const TrainFlags& flags) const {
    for (const auto& [name, value] : flags) defaults[name] = value;
    std::vector<std::string> arguments = {command};
    for (const auto& [name, value] : defaults) {
      if (!value.empty()) arguments.push_back("--" + name + "=" + value);
    }
    return arguments;
  }
  TrainFlags Common() const {
    return {{"text", Sample()},
            {"held_out", Sample()},
            {"output", Path("run")},
            {"sequence_tokens", "64"},
            {"batch", "4"},
            {"micro_batch", "2"},
            {"steps", "30"},
            {"retrieval", "0"},
            {"learning_rate", "0.01"},
            {"evaluation_context", "96"},
            {"evaluation_windows", "1"},
            {"needles", "0"},
            {"threads", "2"}};
  }
  std::vector<std::string> Pretrain(const TrainFlags& flags = {}) const {
    TrainFlags defaults = Common();
    defaults.insert({{"tokenizer", ETA_SOURCE_DIR "/models/eta-27m"},
                     {"layers", "2"},
                     {"width", "32"},
                     {"ffn", "64"},
                     {"query_heads", "4"},
                     {"kv_heads", "2"},
                     {"head_dim", "16"},
                     {"block_size", "16"},
                     {"max_context", "256"}});
    return Arguments("pretrain", defaults, flags);
  }
  std::vector<std::string> Adapt(const std::string& model, const TrainFlags& flags = {}) const {
    TrainFlags defaults = Common();
    defaults.insert({{"model", model}});
    return Arguments("adapt", defaults, flags);
  }

  static ProgramProcess::Exit Run(std::vector<std::string> arguments) {
    return TrainProcess(std::move(arguments)).AwaitExit();
  }
  void ExpectRefused(std::vector<std::string> arguments, const std::string& words) const {
    const ProgramProcess::Exit exit = Run(std::move(arguments));
    EXPECT_EQ(exit.code, 2) << exit.errors;
    EXPECT_NE(exit.errors.find(words), std::string::npos) << exit.errors;
  }

 private:
  const TempFolder folder_{FastParent()};
};

}  // namespace eta::testing
