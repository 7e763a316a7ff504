// Runs a fuzz target over its kept corpus, with any compiler: an input that once found a defect
// keeps guarding against it.
#include <cstdint>
#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "tests/unit/temp_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace eta {
namespace {

TEST(FuzzCorpus, EveryInputPasses) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ETA_FUZZ_CORPUS)) {
    SCOPED_TRACE(entry.path().filename().string());
    const std::string input = ReadFile(entry.path().string());
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()),
              0);
    ++inputs;
  }
  EXPECT_GT(inputs, 0) << "the corpus is empty";
}

TEST(FuzzCorpus, EveryCutOfEveryInputPasses) {
  for (const auto& entry : std::filesystem::directory_iterator(ETA_FUZZ_CORPUS)) {
    const std::string input = ReadFile(entry.path().string());
    const size_t step = 1 + input.size() / 512;
    for (size_t size = 0; size < input.size(); size += step) {
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), size);
    }
  }
}

}  // namespace
}  // namespace eta
