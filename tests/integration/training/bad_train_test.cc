// What eta-train is given that makes no sense: one line that names it, exit code 2, and nothing of
// an earlier run is touched.
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "gmock/gmock.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/training/train_fixture.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

class BadTrainTest : public TrainCase {
 protected:
  std::string Checkpoint() const { return Path("run/checkpoint.safetensors"); }
  // A run of two steps, whose checkpoint is then there.
  void TrainTwoSteps() const {
    const ProgramProcess::Exit exit = Run(Pretrain({{"steps", "2"}, {"held_out", ""}}));
    ASSERT_EQ(exit.code, 0) << exit.errors;
  }
  std::vector<std::string> Resume(TrainFlags flags = {}) const {
    flags.insert({{"steps", "2"}, {"held_out", ""}});
    std::vector<std::string> arguments = Pretrain(flags);
    arguments.push_back("--resume");
    return arguments;
  }
};

// bad input: eta-train | no subcommand or an unknown one; flags missing, unknown, out of range, NaN
//   | exit code 2, one line that names the flag
TEST_F(BadTrainTest, FlagsThatAreMissingUnknownOrOutOfRange) {
  ExpectRefused({}, "subcommand");
  ExpectRefused({"tune"}, "subcommand");
  ExpectRefused(Pretrain({{"tokenizer", ""}}), "--tokenizer");
  ExpectRefused(Pretrain({{"text", ""}}), "--text");
  ExpectRefused(Pretrain({{"output", ""}}), "--output");
  ExpectRefused(Pretrain({{"depth", "2"}}), "--depth");
  for (const auto& [flag, value] :
       {std::pair{"steps", "0"}, std::pair{"layers", "-1"}, std::pair{"retrieval", "1.5"},
        std::pair{"learning_rate", "nan"}, std::pair{"gate", "tanh"},
        std::pair{"attention", "full"}, std::pair{"thresholds", "none"},
        std::pair{"backend", "tpu"}, std::pair{"batch", "99999999999999"}, std::pair{"beta", "inf"},
        std::pair{"preset", "fast"}}) {
    ExpectRefused(Pretrain({{flag, value}}), std::string("--") + flag);
  }
  ExpectRefused(Adapt("model", {{"train", "some"}}), "--train");
  ExpectRefused(Adapt("model", {{"union", "0"}}), "--union");
  const std::string config = Write("bad.conf", "[pretrain]\ndepth = 2\n");
  std::vector<std::string> with_file = Pretrain();
  with_file.push_back("--config=" + config);
  ExpectRefused(with_file, "depth");
}

// bad input: eta-train | a batch that the devices cannot share, heads that do not divide, `--dense`
//   with a gate, `--attention=nsa` with a flag of gates | exit code 2, the flag named, before any
//   text is read
TEST_F(BadTrainTest, FlagsThatDoNotGoTogether) {
  ExpectRefused(Pretrain({{"batch", "3"}}), "batch: ");
  ExpectRefused(Pretrain({{"held_out", ""}, {"evaluate_every", "5"}}), "evaluate_every: ");
  ExpectRefused(Pretrain({{"query_heads", "3"}}), "kv_heads: ");
  ExpectRefused(Pretrain({{"head_dim", "7"}}), "head_dim: ");
  ExpectRefused(Pretrain({{"block_size", "6"}}), "block_size: ");
  std::vector<std::string> dense = Pretrain({{"gate", "additive"}});
  dense.push_back("--dense");
  ExpectRefused(dense, "dense: ");
  for (const auto& [flag, value] :
       {std::pair{"gate", "silu"}, std::pair{"thresholds", "static"}, std::pair{"beta", "5"},
        std::pair{"beta_first", "1"}, std::pair{"beta_share", "0.5"}, std::pair{"sparsity", "0"},
        std::pair{"sparsity_delay", "0"}, std::pair{"sparsity_ramp", "0"},
        std::pair{"sparsity_final", "1"}, std::pair{"block_share", "0"}}) {
    ExpectRefused(Pretrain({{"attention", "nsa"}, {flag, value}}), std::string(flag) + ": ");
  }
  std::vector<std::string> rival = Pretrain({{"attention", "nsa"}});
  rival.push_back("--dense");
  ExpectRefused(rival, "dense: ");
}

TEST_F(BadTrainTest, TextsThatCannotBeRead) {
  ExpectRefused(Pretrain({{"text", Path("absent.txt")}}), "'absent.txt'");
  ExpectRefused(Pretrain({{"text", Write("text.pdf", "text")}}), "text: ");
  ExpectRefused(Pretrain({{"text", Write("bad.jsonl", "{\"text\": 1}\n")}}), "line 1");
  ExpectRefused(Pretrain({{"text", Write("bytes.txt", "caf\xe9")}}), "document 1");
  ExpectRefused(Pretrain({{"text", Write("cut.txt.xz",
                                         "\xfd"
                                         "7zXZ")}}),
                "cut.txt.xz");
  ExpectRefused(Pretrain({{"held_out", Path("absent.txt")}}), "cannot be opened");
  ExpectRefused(Pretrain({{"test", Path("absent.txt")}}), "cannot be opened");
}

// bad input: eta-train | a `--test` text that is a `--text` or `--held_out` too | exit code 2,
//   `test` and the text named, before any text is read
TEST_F(BadTrainTest, ATestTextThatTestsNothing) {
  const std::string other = Write("other.txt", "text");
  ExpectRefused(Pretrain({{"test", Sample()}, {"held_out", ""}}),
                "test: 'needle.txt' is given as --text too");
  std::filesystem::create_symlink(Sample(), Path("link.txt"));
  ExpectRefused(Pretrain({{"text", other}, {"test", Path("link.txt")}}),
                "test: 'link.txt' is given as --held_out too");
}

TEST_F(BadTrainTest, TextsThatFillNothing) {
  ExpectRefused(Pretrain({{"text", Write("empty.txt", "")}}), "text: one sequence takes 65");
  ExpectRefused(Pretrain({{"text", Write("short.txt", "Five words, not sixty-five.")}}),
                "text: one sequence takes 65");
  ExpectRefused(Pretrain({{"held_out", Write("short.txt", "Five words.")}}), "held_out: ");
  ExpectRefused(Pretrain({{"test", Write("short.txt", "Five words.")}}), "test: ");
  ExpectRefused(Pretrain({{"retrieval", "0.5"}}), "retrieval: ");
}

// bad input: eta-train | a tokenizer that is absent, damaged, of another vocabulary; no
//   `--vocab_size` | exit code 2, named
TEST_F(BadTrainTest, TokenizersThatCannotBeUsed) {
  ExpectRefused(Pretrain({{"tokenizer", Path("absent")}}), "tokenizer: ");
  ExpectRefused(Pretrain({{"vocab_size", "100"}}), "vocab");
  std::filesystem::create_directory(Path("damaged"));
  Write("damaged/tokenizer.model", "no pieces");
  ExpectRefused(Pretrain({{"tokenizer", Path("damaged")}}), "tokenizer");
  std::filesystem::create_directory(Path("json"));
  Write("json/tokenizer.json", "{");
  ExpectRefused(Pretrain({{"tokenizer", Path("json")}}), "vocab_size: ");
}

TEST_F(BadTrainTest, ADamagedTokenCacheIsMadeAgain) {
  TrainTwoSteps();
  std::filesystem::remove(Checkpoint());
  std::string cache;
  for (const auto& entry : std::filesystem::directory_iterator(Path("run/tokens"))) {
    cache = entry.path().string();
  }
  const std::string whole = ReadFile(cache);
  std::filesystem::resize_file(cache, whole.size() / 2);
  const ProgramProcess::Exit exit = Run(Pretrain({{"steps", "2"}, {"held_out", ""}}));
  EXPECT_EQ(exit.code, 0) << exit.errors;
  EXPECT_THAT(exit.errors, HasSubstr("is made again"));
  EXPECT_EQ(ReadFile(cache), whole);
}

// bad input: eta-train | an output folder that has a run, without `--resume` | exit code 2; nothing
//   is replaced
TEST_F(BadTrainTest, ARunIsNotReplacedUnasked) {
  TrainTwoSteps();
  const std::string before = ReadFile(Checkpoint());
  ExpectRefused(Pretrain({{"steps", "2"}, {"held_out", ""}}), "--resume goes on from it");
  EXPECT_EQ(ReadFile(Checkpoint()), before);
}

TEST_F(BadTrainTest, ACheckpointThatIsCutOrDamaged) {
  TrainTwoSteps();
  const std::string whole = ReadFile(Checkpoint());
  std::string flipped = whole;
  flipped[whole.size() - 1000] ^= 1;
  for (const std::string& bad : {std::string(), whole.substr(0, 5), whole.substr(0, 1000),
                                 whole.substr(0, whole.size() - 1), flipped}) {
    Write("run/checkpoint.safetensors", bad);
    const ProgramProcess::Exit exit = Run(Resume());
    EXPECT_EQ(exit.code, 2) << exit.errors;
    EXPECT_EQ(ReadFile(Checkpoint()), bad) << "it is left as it is";
  }
  EXPECT_THAT(Run(Resume()).errors, HasSubstr("damaged"));
  Write("run/checkpoint.safetensors", whole);
  EXPECT_EQ(Run(Resume()).code, 0);
}

TEST_F(BadTrainTest, ACheckpointThatIsSomethingElse) {
  TrainTwoSteps();
  std::filesystem::copy_file(ETA_SOURCE_DIR "/models/eta-27m/model.safetensors", Checkpoint(),
                             std::filesystem::copy_options::overwrite_existing);
  ExpectRefused(Resume(), "checkpoint: the file's format is");
  Write("run/checkpoint.safetensors", "text");
  ExpectRefused(Resume(), "");
}

TEST_F(BadTrainTest, ACheckpointOfAnotherRun) {
  TrainTwoSteps();
  ExpectRefused(Resume({{"steps", "9"}}), "steps is '2' in the checkpoint and '9' here");
  ExpectRefused(Resume({{"seed", "9"}}), "seed is '1' in the checkpoint and '9' here");
  ExpectRefused(Resume({{"layers", "1"}}), "layers is '2' in the checkpoint and '1' here");
  ExpectRefused(Resume({{"thresholds", "static"}}), "thresholds is 'predicted'");
  ExpectRefused(Resume({{"attention", "nsa"}}), "attention is 'gated' in the checkpoint and 'nsa'");
  std::string other = ReadFile(Sample());
  other += "One more line.\n";
  ExpectRefused(Resume({{"text", Write("other.txt", other)}}), "texts is ");
}

TEST_F(BadTrainTest, ADiskWithoutRoomKeepsTheLastCheckpoint) {
  TrainTwoSteps();
  const std::string before = ReadFile(Checkpoint());
  // No file of a process that starts now may grow beyond this.
  rlimit limit = {};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small = {.rlim_cur = before.size() / 2, .rlim_max = limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const ProgramProcess::Exit exit = Run(Resume());
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_EQ(exit.code, 1) << exit.errors;
  EXPECT_THAT(exit.errors, HasSubstr("the one before is kept"));
  EXPECT_EQ(ReadFile(Checkpoint()), before);
}

// bad input: eta-train | an output that is a file | exit code 2, `output` named
TEST_F(BadTrainTest, AnOutputThatIsNoFolder) {
  ExpectRefused(Pretrain({{"output", Write("file", "text")}}), "output");
}

// bad input: eta-train | adapt: a model that is absent, predicts thresholds already or has no
//   tokenizer; no held-out text | exit code 2, named
TEST_F(BadTrainTest, ModelsThatCannotBeAdapted) {
  ExpectRefused(Adapt(Path("absent")), "does not exist");
  const TinyModel gated;
  ExpectRefused(Adapt(gated.path()), "predicts thresholds already");
  const TinyModel dense({.has_predictor = false});
  ExpectRefused(Adapt(dense.path(), {{"held_out", ""}, {"evaluate_every", "0"}}), "held_out: ");
  std::filesystem::create_directory(Path("silent"));
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(dense.path() + "/" + name, Path("silent") + "/" + name);
  }
  ExpectRefused(Adapt(Path("silent")), "no tokenizer");
}

TEST_F(BadTrainTest, ALogThatIsSomethingElse) {
  TrainTwoSteps();
  Write("run/log.jsonl", "{\"event\": \"other\"}\n");
  ExpectRefused(Resume(), "log: line 1");
}

TEST_F(BadTrainTest, TheSecondSignalEndsItAtOnce) {
  TrainProcess run(Pretrain({{"steps", "1000000"}, {"sequence_tokens", "512"}, {"batch", "64"}}));
  ASSERT_TRUE(run.AwaitErrors());
  run.Signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // sooner it is the first once more
  run.Signal(SIGINT);
  const int code = run.AwaitExit().code;
  EXPECT_TRUE(code == -1 || code == 3) << code;
}

}  // namespace
}  // namespace eta::testing
