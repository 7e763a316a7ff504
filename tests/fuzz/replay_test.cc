// Runs a fuzz target over its kept corpus, with any compiler: an input that once found a defect
// keeps guarding against it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/process/long_run.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace eta {
namespace {

struct Input {
  std::string name;
  std::string bytes;
};

std::vector<Input> Corpus() {
  const TempFolder folder(FastParent());
  const std::string unpack = "tar -xf '" ETA_FUZZ_CORPUS "' -C '" + folder.path() + "'";
  EXPECT_EQ(std::system(unpack.c_str()), 0) << unpack;
  std::vector<Input> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    inputs.push_back({entry.path().filename().string(), ReadFile(entry.path().string())});
  }
  std::sort(inputs.begin(), inputs.end(),
            [](const Input& a, const Input& b) { return a.name < b.name; });
  return inputs;
}

int RunOne(const std::string& input, size_t size) {
  return LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), size);
}

TEST(FuzzCorpus, EveryInputPasses) {
  const std::vector<Input> inputs = Corpus();
  EXPECT_FALSE(inputs.empty());
  for (const Input& input : inputs) {
    SCOPED_TRACE(input.name);
    EXPECT_EQ(RunOne(input.bytes, input.bytes.size()), 0);
  }
}

// Of every input as many beginnings as there is time for.
TEST(FuzzCorpus, CutInputsPass) {
  const std::vector<Input> inputs = Corpus();
  const size_t cuts =
      std::max<size_t>(1, static_cast<size_t>(Rounds(2000, 60'000)) / inputs.size());
  for (const Input& input : inputs) {
    const size_t step = 1 + input.bytes.size() / cuts;
    for (size_t size = 0; size < input.bytes.size(); size += step) RunOne(input.bytes, size);
  }
}

}  // namespace
}  // namespace eta
