#include "engine/checkpoint/quantized/integer_blocks.h"

#include <cstring>

#include "kernels/dtype.h"
#include "kernels/weights/integer_groups.h"

namespace eta {
namespace {

constexpr size_t kBitsOfWord = 32;

// Numbers of 4 or 8 bits, the first ones in the low bits of a word.
class Words {
 public:
  Words(std::span<const std::byte> words, int bits)
      : words_(words), bits_(static_cast<size_t>(bits)) {}

  size_t of_word() const { return kBitsOfWord / bits_; }
  int32_t At(size_t index) const { return InWord(index / of_word(), index % of_word()); }
  int32_t InWord(size_t word, size_t place) const {
    uint32_t value;
    std::memcpy(&value, words_.data() + word * sizeof(value), sizeof(value));
    return static_cast<int32_t>(value >> (place * bits_) & ((uint32_t{1} << bits_) - 1));
  }

 private:
  std::span<const std::byte> words_;
  size_t bits_;
};

GgmlType TypeOf(const IntegerTensor& tensor) {
  if (tensor.bits == 8) return GgmlType::kQ8_0;
  return tensor.zero_points.empty() ? GgmlType::kQ4_0 : GgmlType::kQ4_1;
}

// Writes a group of 32 numbers as a block. `q`: signed for Q8_0, else 0..15.
void WriteBlock(GgmlType type, std::span<const int32_t, kGroupNumbers> q, float scale, int32_t zero,
                std::byte* block) {
  const uint16_t half = FloatToHalf(scale);
  std::memcpy(block, &half, sizeof(half));
  block += sizeof(half);
  if (type == GgmlType::kQ8_0) {
    for (size_t i = 0; i < q.size(); ++i) block[i] = static_cast<std::byte>(q[i]);
    return;
  }
  if (type == GgmlType::kQ4_1) {
    const uint16_t low = FloatToHalf(HalfToFloat(half) * static_cast<float>(-zero));
    std::memcpy(block, &low, sizeof(low));
    block += sizeof(low);
  }
  constexpr size_t kHalfGroup = kGroupNumbers / 2;
  for (size_t i = 0; i < kHalfGroup; ++i) {
    block[i] = static_cast<std::byte>(q[i] | q[i + kHalfGroup] << 4);
  }
}

}  // namespace

GgmlLayout BlocksOf(const IntegerTensor& tensor) {
  return *FindGgmlLayout(static_cast<uint32_t>(TypeOf(tensor)));
}

std::vector<std::byte> ToBlocks(const IntegerTensor& tensor) {
  const GgmlType type = TypeOf(tensor);
  const GgmlLayout layout = BlocksOf(tensor);
  const Words words(tensor.numbers, tensor.bits);
  const Words zeros(tensor.zero_points, tensor.bits);
  const auto number = [&](size_t at) {
    if (!tensor.in_words) return int32_t{static_cast<int8_t>(tensor.numbers[at])};
    return words.At(at) - (type == GgmlType::kQ8_0 ? 128 : 0);
  };
  std::vector<std::byte> out(tensor.rows * (tensor.cols / kGroupNumbers) * layout.block_bytes);
  std::byte* block = out.data();
  for (size_t row = 0; row < tensor.rows; ++row) {
    const size_t scale_row = tensor.scale_rows == 1 ? 0 : row;
    for (size_t begin = 0; begin < tensor.cols; begin += kGroupNumbers) {
      int32_t q[kGroupNumbers];
      for (size_t i = 0; i < kGroupNumbers; ++i) q[i] = number(row * tensor.cols + begin + i);
      const size_t scale_col = begin / (tensor.cols / tensor.scale_cols);
      // Zero points are packed along the rows.
      const size_t word = scale_row / zeros.of_word() * tensor.scale_cols + scale_col;
      const int32_t zero =
          tensor.zero_points.empty() ? 0 : zeros.InWord(word, scale_row % zeros.of_word());
      WriteBlock(type, q, tensor.scales[scale_row * tensor.scale_cols + scale_col], zero, block);
      block += layout.block_bytes;
    }
  }
  return out;
}

}  // namespace eta
