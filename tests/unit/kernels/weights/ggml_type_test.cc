#include "kernels/weights/ggml_type.h"

#include <cstring>

#include "engine/checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

// The numbers were made by PyPI's package gguf: tests/golden/gguf/make_blocks.py.
TEST(UnpackBlocks, GivesTheNumbersOfTheReferenceBitByBit) {
  const auto golden =
      SafetensorsFile::Open(ETA_SOURCE_DIR "/tests/golden/gguf/blocks.safetensors").value();
  int types = 0;
  for (uint32_t type = 0; type < 64; ++type) {
    const auto layout = FindGgmlLayout(type);
    if (!layout || layout->unpacked != DType::kFloat32 || layout->block_elements == 1) continue;
    SCOPED_TRACE(layout->name);
    ++types;
    const auto blocks = golden.Read(std::string(layout->name) + ".blocks");
    const auto numbers = golden.Read(std::string(layout->name) + ".numbers");
    ASSERT_TRUE(blocks.ok() && numbers.ok());
    ASSERT_EQ(blocks->size() % layout->block_bytes, 0u);
    std::vector<std::byte> unpacked(numbers->size());
    UnpackBlocks(*layout, *blocks, unpacked);
    for (size_t i = 0; i < unpacked.size(); i += sizeof(float)) {
      ASSERT_EQ(std::memcmp(&unpacked[i], &(*numbers)[i], sizeof(float)), 0)
          << "number " << i / sizeof(float);
    }
  }
  EXPECT_EQ(types, 9);
}

TEST(UnpackBlocks, LeavesNumbersThatAreNotQuantisedAsTheyAre) {
  for (const GgmlType type : {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16}) {
    const auto layout = *FindGgmlLayout(static_cast<uint32_t>(type));
    const std::vector<std::byte> numbers(8, std::byte{0x7F});
    std::vector<std::byte> unpacked(8);
    UnpackBlocks(layout, numbers, unpacked);
    EXPECT_EQ(unpacked, numbers);
    EXPECT_EQ(SizeOf(layout.unpacked), layout.block_bytes);
  }
}

TEST(GgmlTypeNames, AreKnownAlsoOfTypesThatAreNotRead) {
  EXPECT_EQ(GgmlTypeName(12), "Q4_K");
  EXPECT_EQ(GgmlTypeName(23), "IQ4_XS");
  EXPECT_EQ(GgmlTypeName(4), "number 4");
  EXPECT_FALSE(FindGgmlLayout(23));
  EXPECT_THAT(KnownGgmlTypes(), ::testing::HasSubstr("Q5_1, Q4_K"));
}

}  // namespace
}  // namespace eta
