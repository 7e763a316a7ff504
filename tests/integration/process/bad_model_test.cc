// A damaged model: the server ends with exit code 2 and one error that names the cause, and never
// listens. Rows 67 to 81 and 100 to 104 of the table of bad inputs.
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/sha256.h"
#include "engine/checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/process/model_server.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Tensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};
using Tensors = std::map<std::string, Tensor>;

// The files of a model that a test damages.
class ModelFiles {
 public:
  explicit ModelFiles(const std::string& folder) : folder_(folder) {}

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Edit(const std::string& name, const std::function<void(std::string&)>& edit) const {
    std::string bytes = ReadFile(Path(name));
    edit(bytes);
    std::ofstream(Path(name), std::ios::binary) << bytes;
  }
  void Replace(const std::string& name, const std::string& old, const std::string& by) const {
    Edit(name, [&](std::string& bytes) {
      const size_t at = bytes.find(old);
      ASSERT_NE(at, std::string::npos) << old;
      bytes.replace(at, old.size(), by);
    });
  }
  // Sets fields of config.json.
  void Configure(const nlohmann::json& fields) const {
    nlohmann::json config = nlohmann::json::parse(ReadFile(Path("config.json")));
    config.update(fields);
    std::ofstream(Path("config.json"), std::ios::binary) << config.dump();
  }
  void EditTensors(const std::function<void(Tensors&)>& edit) const {
    const std::string path = Path("model.safetensors");
    const auto file = SafetensorsFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    Tensors tensors;
    for (const auto& [name, info] : file->tensors()) {
      tensors[name] = {info.dtype, info.shape, *file->Read(name)};
    }
    edit(tensors);
    std::map<std::string, TensorToWrite> written;
    for (const auto& [name, tensor] : tensors) {
      written[name] = {tensor.dtype, tensor.shape, tensor.data};
    }
    ASSERT_TRUE(WriteSafetensors(path, {}, written).ok());
  }
  // Writes weights: this header, with `length` as its stated length, and `data_bytes` zeros.
  void WriteHeader(const std::string& header, uint64_t length, size_t data_bytes) const {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
    std::ofstream(Path("model.safetensors"), std::ios::binary)
        << bytes << header << std::string(data_bytes, '\0');
  }
  // Moves the weights into a shard that the index calls `name`.
  void Shard(const std::string& name) const {
    fs::rename(Path("model.safetensors"), Path("shard.safetensors"));
    std::ofstream(Path("model.safetensors.index.json"))
        << R"({"weight_map": {"model.norm.weight": ")" << name << R"("}})";
  }

 private:
  const std::string folder_;
};

constexpr const char* kProjections[] = {"q_proj", "k_proj", "v_proj"};

// Makes a Qwen2 of the model: adds biases of zeros.
void AddBiases(Tensors& tensors) {
  Tensors biases;
  for (const auto& [name, tensor] : tensors) {
    for (const std::string projection : kProjections) {
      const size_t at = name.find(projection);
      if (at == std::string::npos) continue;
      const auto rows = static_cast<size_t>(tensor.shape[0]);
      biases[name.substr(0, at) + projection + ".bias"] = {
          DType::kFloat32, {tensor.shape[0]}, std::vector<std::byte>(rows * sizeof(float))};
    }
  }
  tensors.merge(biases);
  std::erase_if(
      tensors, [](const auto& entry) { return entry.first.find("tau_proj") != std::string::npos; });
}

struct Damage {
  std::string name;
  std::function<void(const ModelFiles&)> apply;
  std::string cause;  // a text in the line
};

class BadModelTest : public ::testing::TestWithParam<Damage> {};

TEST_P(BadModelTest, IsRefusedInOneLine) {
  const TinyModel model;
  ASSERT_NO_FATAL_FAILURE(GetParam().apply(ModelFiles(model.path())));
  ExpectBadStart(ServeModel(model.path()), GetParam().cause);
}

constexpr char kWeights[] = "model.safetensors";
constexpr char kNorm[] = "model.norm.weight";

// The entry of a tensor in a header.
std::string Entry(const std::string& name, const std::string& shape, int64_t begin, int64_t end,
                  const std::string& dtype = "U8") {
  return absl::StrCat("\"", name, R"(":{"dtype":")", dtype, R"(","shape":[)", shape,
                      R"(],"data_offsets":[)", begin, ",", end, "]}");
}

Damage BadHeader(const std::string& name, const std::string& header, const std::string& cause,
                 size_t data_bytes = 0) {
  return {name,
          [=](const ModelFiles& files) { files.WriteHeader(header, header.size(), data_bytes); },
          "'model.safetensors': safetensors header: " + cause};
}

Damage BadNumber(const std::string& name, const std::string& number, const std::string& cause) {
  return BadHeader(name, absl::StrCat("{", Entry("a", number, 0, 1), "}"), cause, 1);
}

std::string HeaderOfManyTensors() {
  std::string header = "{";
  for (int i = 0; i <= 100'000; ++i) {
    absl::StrAppend(&header, i == 0 ? "" : ",", Entry(absl::StrCat(i), "0", 0, 0));
  }
  return header + "}";
}

const Damage kDamages[] = {
    {"WeightsOfSevenBytes",
     [](const ModelFiles& files) { fs::resize_file(files.Path(kWeights), 7); },
     "'model.safetensors': safetensors file is under 8 bytes"},
    {"WeightsCutInTheHeader",
     [](const ModelFiles& files) { fs::resize_file(files.Path(kWeights), 100); },
     "'model.safetensors': safetensors file ends inside its header"},
    {"WeightsCutInTheData",
     [](const ModelFiles& files) {
       fs::resize_file(files.Path(kWeights), fs::file_size(files.Path(kWeights)) - 1);
     },
     "'model.safetensors': safetensors file ends before its last tensor"},
    {"HeaderLengthNearTwoToThe64",
     [](const ModelFiles& files) {
       files.Edit(kWeights,
                  [](std::string& bytes) { bytes.replace(0, 8, "\xf8" + std::string(7, '\xff')); });
     },
     "'model.safetensors': safetensors header: its length is over 8 MiB"},
    {"HeaderLengthOverTheFile",
     [](const ModelFiles& files) { files.WriteHeader("{}", 100, 0); },
     "'model.safetensors': safetensors header: its length runs past the end of the file"},
    {"HeaderLengthOverItsLimit",
     [](const ModelFiles& files) { files.WriteHeader("{}", (8 << 20) + 1, 0); },
     "'model.safetensors': safetensors header: its length is over 8 MiB"},
    BadHeader("HeaderThatIsNotUtf8", "{\"\xff\":{}}", "is not UTF-8 at byte"),
    BadHeader("HeaderWithoutABrace", " {}", "does not start with a brace"),
    BadHeader("HeaderWithTrailingJunk", "{}{}", "is not JSON at byte 3"),
    BadHeader("HeaderNestedAMillionDeep", "{\"a\":" + std::string(1'000'000, '[') + "}",
              "an array stands where none is allowed"),
    BadHeader("HeaderNestedFiveDeep", R"({"a":{"shape":[[[1]]]}})",
              "an array stands where none is allowed"),
    BadNumber("ANumberWithASign", "-1", "a number has a sign"),
    BadNumber("ANumberWithAFraction", "1.0", "a number has a fraction or an exponent"),
    BadNumber("ANumberWithAnExponent", "1e0", "a number has a fraction or an exponent"),
    BadNumber("ANumberOverTwoToThe48", "281474976710657", "a number is over 2^48"),
    BadHeader("TheSameNameByAnEscape",
              absl::StrCat("{", Entry("a", "1", 0, 1), ",", Entry("\\u0061", "1", 1, 2), "}"),
              "the name 'a' occurs twice", 2),
    BadHeader("TensorsThatOverlap",
              absl::StrCat("{", Entry("a", "4", 0, 4), ",", Entry("b", "4", 3, 7), "}"),
              "tensor 'b' overlaps another", 7),
    BadHeader("ATensorAfterAHole",
              absl::StrCat("{", Entry("a", "4", 0, 4), ",", Entry("b", "4", 5, 9), "}"),
              "tensor 'b' follows a hole", 9),
    BadHeader("ATensorThatEndsBeforeItStarts",
              absl::StrCat("{", Entry("a", "4", 4, 0), "}"), "tensor 'a' ends before it starts", 4),
    BadHeader("AShapeThatOverflows",
              absl::StrCat("{", Entry("a", "281474976710656,281474976710656", 0, 0), "}"),
              "tensor 'a' has a shape whose size overflows 64 bits"),
    BadHeader("NineDimensions",
              absl::StrCat("{", Entry("a", "1,1,1,1,1,1,1,1,1", 0, 1), "}"),
              "a shape has over 8 dimensions", 1),
    BadHeader("OverAHundredThousandTensors", HeaderOfManyTensors(), "has over 100000 tensors"),
    BadHeader("ASpanThatDoesNotFitTheShape", absl::StrCat("{", Entry("a", "3", 0, 4), "}"),
              "tensor 'a' has data_offsets that do not fit shape and dtype", 4),
    {"BytesAfterTheLastTensor",
     [](const ModelFiles& files) {
       files.Edit(kWeights, [](std::string& bytes) { bytes += "PK\3\4"; });
     },
     "'model.safetensors': safetensors header: bytes follow the last tensor"},
    {"TheSameNameTwice",
     [](const ModelFiles& files) {
       files.Replace(kWeights, "model.layers.1.mlp.up_proj", "model.layers.0.mlp.up_proj");
     },
     "the name 'model.layers.0.mlp.up_proj.weight' occurs twice"},
    {"AnUnsupportedType",
     [](const ModelFiles& files) { files.Replace(kWeights, "\"F32\"", "\"C64\""); },
     "has the unsupported dtype 'C64'"},
    {"AnotherShape",
     [](const ModelFiles& files) {
       files.EditTensors([](Tensors& tensors) { tensors[kNorm].shape = {8, 8}; });
     },
     "'model.norm.weight' has shape [8, 8], expected [64]"},
    {"ATensorOfIntegers",
     [](const ModelFiles& files) {
       files.EditTensors([](Tensors& tensors) { tensors[kNorm].dtype = DType::kInt32; });
     },
     "'model.norm.weight' has dtype int32, expected float32, float16 or bfloat16"},
    {"NearlyAllTensorsMissing",
     [](const ModelFiles& files) {
       files.EditTensors([](Tensors& tensors) {
         std::erase_if(tensors, [](const auto& tensor) { return tensor.first != kNorm; });
       });
     },
     "the tensors do not fit config.json, "},
    {"ATensorMissing",
     [](const ModelFiles& files) {
       files.EditTensors([](Tensors& tensors) { tensors.erase(kNorm); });
     },
     "'model.norm.weight' is missing"},
    {"ATensorTooMany",
     [](const ModelFiles& files) {
       files.EditTensors([](Tensors& tensors) { tensors["smuggled"] = tensors[kNorm]; });
     },
     "'smuggled' is not expected"},
    {"ANanWeight",
     [](const ModelFiles& files) {
       files.EditTensors([](Tensors& tensors) {
         const float nan = std::numeric_limits<float>::quiet_NaN();
         std::memcpy(tensors[kNorm].data.data() + 5 * sizeof(nan), &nan, sizeof(nan));
       });
     },
     "model.norm.weight: element 5 is NaN or infinite"},
    {"AnInfiniteWeight",
     [](const ModelFiles& files) {
       files.EditTensors([](Tensors& tensors) {
         const float infinity = std::numeric_limits<float>::infinity();
         std::memcpy(tensors[kNorm].data.data(), &infinity, sizeof(infinity));
       });
     },
     "model.norm.weight: element 0 is NaN or infinite"},
    {"AShardWithAnAbsolutePath",
     [](const ModelFiles& files) { files.Shard(files.Path("shard.safetensors")); },
     "gives tensor 'model.norm.weight' a file name that is not allowed"},
    {"AShardOutsideTheFolder", [](const ModelFiles& files) { files.Shard("../shard.safetensors"); },
     "gives tensor 'model.norm.weight' a file name that is not allowed"},
    {"AShardThatIsNotThere", [](const ModelFiles& files) { files.Shard("lost.safetensors"); },
     "'lost.safetensors' does not exist"},
    {"AShardThatLinksOutside",
     [](const ModelFiles& files) {
       files.Shard("link.safetensors");
       fs::create_symlink("/etc/passwd", files.Path("link.safetensors"));
     },
     "'link.safetensors' is a link to outside"},
    {"AFileThatAllMayWrite",
     [](const ModelFiles& files) {
       fs::permissions(files.Path(kWeights), fs::perms::others_write, fs::perm_options::add);
     },
     "'model.safetensors' may be written by every user"},
    {"ATokenizerCutShort",
     [](const ModelFiles& files) { fs::resize_file(files.Path("tokenizer.model"), 1000); },
     "tokenizer model: "},
    {"AnotherVocabularyThanTheTokenizers",
     [](const ModelFiles& files) {
       files.Replace("config.json", "8192", "8191");
       files.EditTensors([](Tensors& tensors) {
         Tensor& embedding = tensors["model.embed_tokens.weight"];
         embedding.shape[0] = 8191;
         embedding.data.resize(embedding.data.size() / 8192 * 8191);
       });
     },
     "tokenizer model: has 8192 pieces, config.json says vocab_size 8191"},
    {"ASpecialIdOutsideTheVocabulary",
     [](const ModelFiles& files) {
       files.Edit("config.json", [](std::string& bytes) {
         const size_t at = bytes.find(':', bytes.find("\"bos_token_id\"")) + 1;
         bytes.replace(at, bytes.find_first_of(",}", at) - at, "8192");
       });
     },
     "config.json: bos_token_id must be a whole number from 0 to 8191"},
    {"AFamilyThatIsNotKnown",
     [](const ModelFiles& files) { files.Configure({{"model_type", "mixtral"}}); },
     "config.json: model_type 'mixtral' is not supported, only eta, llama, mistral, qwen2 and "
     "qwen3"},
    {"ARopeScalingThatIsNotKnown",
     [](const ModelFiles& files) {
       files.Configure({{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4.0}}}});
     },
     "config.json: rope_scaling.rope_type 'longrope' is not supported"},
    {"AFieldOfARopeScalingThatIsNotKnown",
     [](const ModelFiles& files) {
       files.Configure({{"rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}, {"alpha", 9}}}});
     },
     "config.json: rope_scaling.'alpha' is not known"},
    {"ARopeScalingOutOfBounds",
     [](const ModelFiles& files) {
       files.Configure({{"rope_scaling", {{"type", "yarn"}, {"factor", 1e9}}}});
     },
     "config.json: rope_scaling.factor must be a number from 1 to 10000"},
    {"ExpertsInALlama",
     [](const ModelFiles& files) {
       files.Configure({{"model_type", "llama"}, {"num_local_experts", 8}});
     },
     "config.json: num_local_experts is not supported"},
    {"BiasesOfTheFeedForward",
     [](const ModelFiles& files) {
       files.Configure({{"model_type", "llama"}, {"mlp_bias", true}});
     },
     "config.json: mlp_bias true is not supported"},
    {"BiasesThatAMistralDoesNotHave",
     [](const ModelFiles& files) {
       files.Configure({{"model_type", "mistral"}, {"attention_bias", true}});
     },
     "config.json: attention_bias true is not supported"},
    {"AnAdaptedFamilyThatIsNone",
     [](const ModelFiles& files) { files.Configure({{"eta_family", "eta"}}); },
     "config.json: eta_family 'eta' is not a family that can be adapted"},
    {"AHeadThatTurnsInPart",
     [](const ModelFiles& files) { files.Configure({{"partial_rotary_factor", 0.5}}); },
     "config.json: partial_rotary_factor is not supported"},
    {"AWindowOfNothing",
     [](const ModelFiles& files) {
       files.Configure({{"model_type", "mistral"}, {"sliding_window", 0}});
     },
     "config.json: sliding_window must be a whole number from 1 to 16777216"},
    {"AKindOfLayerThatIsNotKnown",
     [](const ModelFiles& files) {
       files.Configure({{"model_type", "qwen3"},
                        {"layer_types", {"full_attention", "linear_attention"}}});
     },
     "config.json: layer_types 'linear_attention' is not supported"},
    {"KindsOfMoreLayersThanThereAre",
     [](const ModelFiles& files) {
       files.Configure({{"model_type", "qwen3"},
                        {"layer_types", nlohmann::json(3, "full_attention")}});
     },
     "config.json: layer_types must be a list with one entry for each layer"},
    {"BiasesMissing",
     [](const ModelFiles& files) {
       files.Configure({{"model_type", "qwen2"}});
       files.EditTensors([](Tensors& tensors) {
         AddBiases(tensors);
         tensors.erase("model.layers.1.self_attn.k_proj.bias");
       });
     },
     "'model.layers.1.self_attn.k_proj.bias' is missing"},
    {"ABiasOfAnotherLength",
     [](const ModelFiles& files) {
       files.Configure({{"model_type", "qwen2"}});
       files.EditTensors([](Tensors& tensors) {
         AddBiases(tensors);
         Tensor& bias = tensors["model.layers.0.self_attn.v_proj.bias"];
         bias.shape[0] = 32;
         bias.data.resize(32 * sizeof(float));
       });
     },
     "'model.layers.0.self_attn.v_proj.bias' has shape [32], expected [64]"},
    {"ANanBias",
     [](const ModelFiles& files) {
       files.Configure({{"model_type", "qwen2"}});
       files.EditTensors([](Tensors& tensors) {
         AddBiases(tensors);
         const float nan = std::numeric_limits<float>::quiet_NaN();
         std::memcpy(tensors["model.layers.0.self_attn.v_proj.bias"].data.data(), &nan,
                     sizeof(nan));
       });
     },
     "model.layers.0.self_attn.v_proj.bias: element 0 is NaN or infinite"},
    {"NormsOfHeadsMissing",
     [](const ModelFiles& files) { files.Configure({{"model_type", "qwen3"}}); },
     "'model.layers.0.self_attn.k_norm.weight' is missing"},
    {"AHeadOfAnotherShapeInATiedModel",
     [](const ModelFiles& files) {
       files.EditTensors([](Tensors& tensors) { tensors["lm_head.weight"] = tensors[kNorm]; });
     },
     "'lm_head.weight' has shape [64], expected [8192, 64]"},
    {"AConfigThatIsNoJson",
     [](const ModelFiles& files) { fs::resize_file(files.Path("config.json"), 20); },
     "config.json is not JSON"},
};

INSTANTIATE_TEST_SUITE_P(Damages, BadModelTest, ::testing::ValuesIn(kDamages),
                         [](const auto& test) { return test.param.name; });

TEST(GoodModel, IsServed) {
  const TinyModel model;
  ServerProcess server = ServeModel(model.path());
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  EXPECT_EQ(AnswerOf(address).size(), 4u);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit().code, 0);
}

// Row 78.
TEST(PinnedModel, IsServedOnlyWithTheDigestsThatAreListed) {
  const TinyModel model;
  const ModelFiles files(model.path());
  std::vector<std::string> pins;
  for (const char* name : {"config.json", kWeights, "tokenizer.model"}) {
    pins.insert(
        pins.end(),
        {"--sha256", absl::StrCat(name, "=", Sha256Hex(ReadFile(files.Path(name))).value())});
  }
  {
    ServerProcess server = ServeModel(model.path(), pins);
    EXPECT_NE(server.AwaitAddress(), "") << server.AwaitExit().errors;
  }
  std::vector<std::string> fewer(pins.begin(), pins.end() - 2);
  ExpectBadStart(ServeModel(model.path(), fewer),
                 "'tokenizer.model' is not on the list of expected SHA-256 digests");
  files.Edit(kWeights, [](std::string& bytes) { bytes.back() ^= 1; });
  ExpectBadStart(ServeModel(model.path(), pins),
                 "'model.safetensors' does not have the expected SHA-256 digest");
}

// Row 79: a copy is served.
TEST(LoadedModel, DoesNotChangeWithItsFiles) {
  const TinyModel model;
  const ModelFiles files(model.path());
  ServerProcess server = ServeModel(model.path());
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  const std::vector<int32_t> answer = AnswerOf(address);
  EXPECT_EQ(answer.size(), 4u);
  files.Edit(kWeights, [](std::string& bytes) { bytes.assign(bytes.size(), '\x7f'); });
  EXPECT_EQ(AnswerOf(address), answer) << "overwritten";
  for (const char* name : {"config.json", kWeights, "tokenizer.model"}) {
    fs::resize_file(files.Path(name), 3);
  }
  EXPECT_EQ(AnswerOf(address), answer) << "truncated";
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit().code, 0);
  ExpectBadStart(ServeModel(model.path()), "");
}

// Row 80: only with the flag, and then no request with such numbers is answered with text.
TEST(NonfiniteWeights, AreServedWhereTheFlagAllowsThem) {
  const TinyModel model({.tied = false, .nan_embedding = 300});
  ExpectBadStart(ServeModel(model.path()), "is NaN or infinite");
  ServerProcess server = ServeModel(model.path(), {"--allow_nonfinite_weights"});
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  const auto stub =
      v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(300);
  ClientCall call(*stub);
  call.Start(request);
  call.ReadText();
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(AnswerOf(address).size(), 4u) << "others are not affected";
}

}  // namespace
}  // namespace eta::testing
