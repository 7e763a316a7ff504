// What the server says of a damaged model: it ends with exit code 2 and one line that names the
// cause, and never listens.
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/safetensors.h"
#include "gmock/gmock.h"
#include "tests/testing/server_process.h"
#include "tests/testing/tiny_model.h"
#include "tests/unit/temp_folder.h"

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

// The files of a model, to be damaged.
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
  // Moves the weights into a shard that the index calls `name`.
  void Shard(const std::string& name) const {
    fs::rename(Path("model.safetensors"), Path("shard.safetensors"));
    std::ofstream(Path("model.safetensors.index.json"))
        << R"({"weight_map": {"model.norm.weight": ")" << name << R"("}})";
  }

 private:
  const std::string folder_;
};

struct Damage {
  std::string name;
  std::function<void(const ModelFiles&)> apply;
  std::string cause;  // in the line
};

ServerProcess Serve(const std::string& model) {
  return ServerProcess(ETA_BINARY_DIR "/eta-server",
                       {"--model", model, "--listen", "127.0.0.1:0", "--kv_pool_bytes", "64MiB"});
}

class BadModelTest : public ::testing::TestWithParam<Damage> {};

TEST_P(BadModelTest, IsRefusedInOneLine) {
  const TinyModel model;
  ASSERT_NO_FATAL_FAILURE(GetParam().apply(ModelFiles(model.path())));
  ServerProcess server = Serve(model.path());
  EXPECT_EQ(server.AwaitAddress(), "") << "it listens";
  server.Signal(SIGTERM);  // else a server that took the model would stay
  const ServerProcess::Exit exit = server.AwaitExit();
  EXPECT_EQ(exit.code, 2);
  EXPECT_THAT(exit.errors, HasSubstr(GetParam().cause));
  EXPECT_EQ(std::count(exit.errors.begin(), exit.errors.end(), '\n'), 1) << exit.errors;
}

constexpr char kWeights[] = "model.safetensors";
constexpr char kNorm[] = "model.norm.weight";

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
    {"AConfigThatIsNoJson",
     [](const ModelFiles& files) { fs::resize_file(files.Path("config.json"), 20); },
     "config.json is not JSON"},
};

INSTANTIATE_TEST_SUITE_P(Damages, BadModelTest, ::testing::ValuesIn(kDamages),
                         [](const auto& test) { return test.param.name; });

TEST(GoodModel, IsServed) {
  const TinyModel model;
  ServerProcess server = Serve(model.path());
  EXPECT_NE(server.AwaitAddress(), "") << server.AwaitExit().errors;
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit().code, 0);
}

}  // namespace
}  // namespace eta::testing
