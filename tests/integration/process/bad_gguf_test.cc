// A GGUF file as the model: served as a folder is, or, damaged, the server ends with exit code 2
// and one error that names the cause, and never listens. Rows 90 to 99 of the table of bad
// inputs.
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/sha256.h"
#include "gmock/gmock.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_gguf.h"
#include "tests/testing/process/model_server.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

struct Damage {
  std::string name;
  std::function<void(GgufWriter&)> change;  // of the file before it is written
  std::string cause;                        // a text in the line
  std::function<void(std::string&)> damage = [](std::string&) {};  // of its bytes
};

class BadGgufTest : public ::testing::TestWithParam<Damage> {};

TEST_P(BadGgufTest, IsRefusedInOneLine) {
  const TempFolder folder;
  TinyGguf tiny;
  UseByteLevelVocabulary(tiny.file);
  GetParam().change(tiny.file);
  std::string bytes = tiny.file.Serialize();
  GetParam().damage(bytes);
  ExpectBadStart(ServeModel(folder.Write("bad.gguf", bytes)), GetParam().cause);
}

void Nothing(GgufWriter&) {}

// A change of a tensor.
std::function<void(GgufWriter&)> OfNorm(const std::function<void(GgufWriter::Tensor&)>& change) {
  return [change](GgufWriter& file) { change(file.At("output_norm.weight")); };
}
template <typename T>
std::function<void(GgufWriter&)> Key(const std::string& key, const T& value) {
  return [key, value](GgufWriter& file) { file.Set(key, value); };
}
std::function<void(GgufWriter&)> RawKey(uint32_t type, const std::string& bytes) {
  return [type, bytes](GgufWriter& file) { file.SetRaw("raw", type, bytes); };
}

using Texts = std::vector<std::string>;

const Damage kDamages[] = {
    {"AnEmptyFile", Nothing, "does not begin with GGUF", [](auto& bytes) { bytes.clear(); }},
    {"AnotherKindOfFile", Nothing, "does not begin with GGUF", [](auto& bytes) { bytes[0] = 'P'; }},
    {"AFileCutInTheHead", Nothing, "'bad.gguf': GGUF file ends inside its head",
     [](auto& bytes) { bytes.resize(500); }},
    {"AFileCutInTheData", Nothing, "'bad.gguf': GGUF file ends before its last tensor",
     [](auto& bytes) { bytes.pop_back(); }},
    {"BytesBehindTheData", Nothing, "bytes follow the last tensor",
     [](auto& bytes) { bytes += std::string(64, 'x'); }},
    {"Version1", [](auto& file) { file.version = 1; }, "version 1 is not supported, only 2 and 3"},
    {"BigEndian", [](auto& file) { file.version = 0x03000000; }, "is big-endian"},
    {"TensorsByTheTrillion", [](auto& file) { file.stated_tensors = uint64_t{1} << 40; },
     "has not 1 to 100000 tensors"},
    {"EntriesByTheTrillion", [](auto& file) { file.stated_entries = uint64_t{1} << 40; },
     "has over 65536 metadata entries"},
    {"AListByTheTrillion", RawKey(9, RawBytes(uint32_t{0}) + RawBytes(uint64_t{1} << 40)),
     "key 'raw' has over 4194304 elements"},
    {"ATextOverTheFile", RawKey(8, RawBytes(UINT64_MAX)), "GGUF file ends inside its head"},
    {"AListOfLists", RawKey(9, RawBytes(uint32_t{9}) + RawBytes(uint64_t{0})),
     "key 'raw' is a list of lists"},
    {"AnUnknownTypeOfValue", RawKey(13, ""), "key 'raw' has the unknown type 13"},
    {"ATruthValueOfTwo", RawKey(7, "\2"), "key 'raw' has a truth value other than 0 and 1"},
    {"AnAlignmentOfThree", Key("general.alignment", uint32_t{3}),
     "general.alignment must be a power of two"},
    {"ATensorOfFiveDimensions", OfNorm([](auto& norm) {
       norm.dimensions = {64, 1, 1, 1, 1};
     }),
     "tensor 'output_norm.weight' has not 1 to 4 dimensions"},
    {"ADimensionOfZero", OfNorm([](auto& norm) {
       norm.dimensions = {64, 0};
     }),
     "tensor 'output_norm.weight' has a dimension that is not in [1, 2^40]"},
    {"AShapeThatOverflows", OfNorm([](auto& norm) {
       norm.dimensions = {1 << 30, 1 << 30, 1 << 30};
     }),
     "tensor 'output_norm.weight' has a shape whose size overflows 64 bits"},
    {"TensorsThatOverlap", OfNorm([](auto& norm) { norm.offset = 0; }), "overlaps another"},
    {"ATensorAfterAHole", OfNorm([](auto& norm) { norm.offset = uint64_t{1} << 50; }),
     "follows a hole"},
    {"ATensorTwice", OfNorm([](auto& norm) { norm.name = "output.weight"; }),
     "tensor 'output.weight' is there twice"},
    {"AnUnsupportedTypeOfTensor", OfNorm([](auto& norm) { norm.type = 23; }),
     "tensor 'output_norm.weight' has type IQ4_XS, which is not supported"},
    {"RowsThatAreNoBlocks", OfNorm([](auto& norm) { norm.type = 12; }),
     "tensor 'output_norm.weight' has rows that are not whole blocks of Q4_K"},
    {"AnUnknownTensor", OfNorm([](auto& norm) { norm.name = "smuggled"; }),
     "tensor 'smuggled' is not known"},
    {"ATensorMissing", [](auto& file) { file.RemoveTensor("blk.1.ffn_up.weight"); },
     "'model.layers.1.mlp.up_proj.weight' is missing"},
    {"AnotherShapeThanTheMetadataSay", Key("llama.feed_forward_length", uint32_t{95}),
     "has shape [96, 64], expected [95, 64]"},
    {"HeadsThatDoNotDivideTheRows", Key("llama.attention.head_count", uint32_t{3}),
     "has rows that are not whole pairs of its heads"},
    {"ANanWeight",
     OfNorm([](auto& norm) { norm.data.replace(8, 4, std::string("\0\0\xC0\x7F", 4)); }),
     "model.norm.weight: element 2 is NaN or infinite"},
    {"AnUnknownArchitecture", Key("general.architecture", "mamba"),
     "'general.architecture' 'mamba' is not supported"},
    {"AnUnknownKeyOfTheArchitecture", Key("llama.logit_scale", 2.0f),
     "'llama.logit_scale' other than 0 is not supported"},
    {"AnotherModelsKey", Key("llama.ssm.conv_kernel", uint32_t{4}),
     "'llama.ssm.conv_kernel' is not known"},
    {"AnEndOutsideTheVocabulary", Key("tokenizer.ggml.eos_token_ids", std::vector<int32_t>{2, 264}),
     "'tokenizer.ggml.eos_token_ids' must be whole numbers in [0, 263]"},
    {"Experts", Key("llama.expert_count", uint32_t{8}), "'llama.expert_count' is not supported"},
    {"OneOfSeveralFiles", Key("split.count", uint32_t{2}), "'split.count' over 1"},
    {"LongRope", Key("llama.rope.scaling.type", "longrope"),
     "'llama.rope.scaling.type' 'longrope' is not supported"},
    {"AKeyMissing", [](auto& file) { file.Remove("llama.block_count"); },
     "'llama.block_count' is missing"},
    {"AKeyOfAnotherType", Key("llama.block_count", "two"),
     "'llama.block_count' must be one whole number"},
    {"AnUnknownTokenizer", Key("tokenizer.ggml.model", "t5"),
     "'tokenizer.ggml.model' 't5' is not supported"},
    {"AnUnknownPreTokenizer", Key("tokenizer.ggml.pre", "nobody"),
     "'tokenizer.ggml.pre' 'nobody' is not a pre-tokenizer that is known"},
    {"ATokenThatIsNotUtf8", Key("tokenizer.ggml.tokens", Texts{"\xFF"}), "entry 0 is not UTF-8"},
    {"ATokenTwice", Key("tokenizer.ggml.tokens", Texts{"a", "a"}), "entry 1 is there twice"},
    {"TypesThatDoNotFitTheTokens", Key("tokenizer.ggml.token_type", std::vector<int32_t>{1}),
     "'tokenizer.ggml.token_type' must have as many entries"},
    {"AMergeOfOnePart", Key("tokenizer.ggml.merges", Texts{"ab"}),
     "'tokenizer.ggml.merges' entry 0 must be two parts"},
    {"ASpecialIdOutsideTheVocabulary", Key("tokenizer.ggml.bos_token_id", uint32_t{264}),
     "'tokenizer.ggml.bos_token_id' must be one whole number in [0, 263]"},
    {"MoreTokensThanRows",
     [](auto& file) {
       Texts tokens;
       for (int i = 0; i < 265; ++i) tokens.push_back(std::to_string(i));
       file.Set("tokenizer.ggml.tokens", tokens);
       file.Remove("tokenizer.ggml.token_type");
     },
     "'tokenizer.ggml.tokens' has more entries than token_embd.weight has rows"},
};

INSTANTIATE_TEST_SUITE_P(Damages, BadGgufTest, ::testing::ValuesIn(kDamages),
                         [](const auto& test) { return test.param.name; });

// The file and the folder that eta-eval makes of it give the same tokens.
TEST(GoodGguf, IsServedAsTheFolderThatItIsImportedTo) {
  const TempFolder folder;
  const std::string path = folder.Write("tiny.gguf", TinyGguf().file.Serialize());
  std::vector<std::vector<int32_t>> answers;
  const std::string out = folder.path() + "/out";
  ServerProcess import(ETA_BINARY_DIR "/eta-eval", {"import", path, out});
  EXPECT_EQ(import.AwaitExit().code, 0);
  for (const std::string& model : {path, out}) {
    ServerProcess server = ServeModel(model);
    const std::string address = server.AwaitAddress();
    ASSERT_NE(address, "") << server.AwaitExit().errors;
    answers.push_back(AnswerOf(address));
    server.Signal(SIGTERM);
    EXPECT_EQ(server.AwaitExit().code, 0);
  }
  EXPECT_EQ(answers[0].size(), 4u);
  EXPECT_EQ(answers[0], answers[1]);
}

TEST(GoodGguf, IsServedOnlyWithTheDigestThatIsListed) {
  const TempFolder folder;
  const std::string bytes = TinyGguf().file.Serialize();
  const std::string path = folder.Write("tiny.gguf", bytes);
  const std::string pin = absl::StrCat("tiny.gguf=", *Sha256Hex(bytes));
  {
    ServerProcess server = ServeModel(path, {"--sha256", pin});
    EXPECT_NE(server.AwaitAddress(), "") << server.AwaitExit().errors;
  }
  std::filesystem::permissions(path, std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  ExpectBadStart(ServeModel(path), "'tiny.gguf' may be written by every user");
  folder.Write("other.gguf", TinyGguf({.seed = 2}).file.Serialize());
  ExpectBadStart(ServeModel(folder.path() + "/other.gguf", {"--sha256", pin}),
                 "'other.gguf' is not on the list of expected SHA-256 digests");
}

}  // namespace
}  // namespace eta::testing
