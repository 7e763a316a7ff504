#include "kernels/cpu/packed/block_rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace eta::cpu {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kQuads = kGroupNumbers / 4;  // of a group: four terms, which share a word

// The numbers u of one channel, four to a word.
using Words = std::array<uint32_t, kQuads>;

constexpr uint32_t EachByte(uint32_t byte) {
  return byte * 0x01010101u;
}

// A code whose q + offset is `u`.
uint32_t CodeOf(const IntegerForm& form, uint32_t u) {
  for (uint32_t code = 0; code < kCodedNumbers.size(); ++code) {
    if (kCodedNumbers[code] + form.offset == static_cast<int>(u)) return code;
  }
  return 0;
}

// The word of a channel in line `line` of a group's numbers.
uint32_t Load(const uint8_t* numbers, size_t line, size_t channel) {
  uint32_t word;
  std::memcpy(&word, numbers + line * kLine + channel * sizeof(word), sizeof(word));
  return word;
}
void Store(uint32_t word, uint8_t* numbers, size_t line, size_t channel) {
  std::memcpy(numbers + line * kLine + channel * sizeof(word), &word, sizeof(word));
}

void StoreWords(const Words& words, int bits, uint8_t* numbers, size_t channel) {
  if (bits == 8) {
    for (size_t t = 0; t < kQuads; ++t) Store(words[t], numbers, t, channel);
    return;
  }
  for (size_t j = 0; j < kQuads / 2; ++j) {
    const uint32_t upper = words[j + kQuads / 2] & EachByte(0x0F);
    Store((words[j] & EachByte(0x0F)) | upper << 4, numbers, j, channel);
  }
  const auto high_bits = static_cast<size_t>(bits - 4);
  const uint32_t mask = EachByte((1u << high_bits) - 1);
  for (size_t line = 0; line < high_bits; ++line) {
    uint32_t word = 0;
    const size_t quads = kQuads / high_bits;
    for (size_t t = 0; t < quads; ++t) {
      word |= (words[line * quads + t] >> 4 & mask) << t * high_bits;
    }
    Store(word, numbers, kQuads / 2 + line, channel);
  }
}

Words LoadWords(int bits, const uint8_t* numbers, size_t channel) {
  Words words;
  const auto high_bits = static_cast<size_t>(bits - 4);
  for (size_t t = 0; t < kQuads; ++t) {
    if (bits == 8) {
      words[t] = Load(numbers, t, channel);
      continue;
    }
    words[t] = Load(numbers, t % 4, channel) >> t / 4 * 4 & EachByte(0x0F);
    if (high_bits == 0) continue;
    const size_t quads = kQuads / high_bits;
    const uint32_t high = Load(numbers, kQuads / 2 + t / quads, channel) >> t % quads * high_bits;
    words[t] |= (high & EachByte((1u << high_bits) - 1)) << 4;
  }
  return words;
}

}  // namespace

BlockRows::BlockRows(int64_t rows, int64_t cols, const GgmlLayout& layout)
    : layout_(layout),
      form_(FormOf(layout.type)),
      rows_(rows),
      cols_(cols),
      num_groups_((static_cast<size_t>(cols) + kGroupNumbers - 1) / kGroupNumbers),
      num_panels_((rows + int64_t{kPackedChannels} - 1) / int64_t{kPackedChannels}),
      units_at_(num_groups_ * NumberBytes(form_)),
      factors_at_(units_at_ +
                  (form_.nested ? num_groups_ / kUnitGroups : num_groups_) * UnitBytes(form_)),
      panel_bytes_((factors_at_ + num_groups_ * FactorBytes(form_) + kLine - 1) / kLine * kLine),
      data_(AllocateOrThrow(panel_bytes_ * static_cast<size_t>(num_panels_))) {}

void BlockRows::SetRow(int64_t row, std::span<const std::byte> blocks) {
  thread_local std::vector<IntegerGroup> groups;
  groups.resize(blocks.size() / layout_.block_bytes * layout_.block_elements / kGroupNumbers);
  DecodeGroups(layout_, blocks, groups);
  for (size_t i = 0; i < num_groups_; ++i) SetGroup(row, i, groups[i]);
}

void BlockRows::SetGroup(int64_t row, size_t index, const IntegerGroup& group) {
  const int64_t panel = row / int64_t{kPackedChannels};
  const auto c = static_cast<size_t>(row % int64_t{kPackedChannels});
  auto* numbers = const_cast<uint8_t*>(this->numbers(panel)) + index * NumberBytes(form_);
  Words words{};
  for (size_t k = 0; k < kGroupNumbers; ++k) {
    const auto u = static_cast<uint32_t>(group.q[k] + form_.offset);
    words[k / 4] |= (form_.coded ? CodeOf(form_, u) : u) << k % 4 * 8;
  }
  StoreWords(words, form_.bits, numbers, c);
  const size_t unit = (form_.nested ? index / kUnitGroups : index) * (form_.has_low ? 2 : 1);
  auto* units = const_cast<uint16_t*>(this->units(panel)) + unit * kPackedChannels + c;
  units[0] = form_.coded ? FloatToBFloat16(group.unit) : FloatToHalf(group.unit);
  if (form_.has_low) units[kPackedChannels] = FloatToHalf(group.low_unit);
  if (!form_.nested) return;
  auto* factors = const_cast<uint8_t*>(this->factors(panel)) + index * FactorBytes(form_) + c;
  for (int i = 0; i < form_.scales; ++i, factors += kPackedChannels) {
    *factors = static_cast<uint8_t>(group.factor[static_cast<size_t>(i)]);
  }
  if (form_.has_low) *factors = static_cast<uint8_t>(group.low_factor);
}

IntegerGroup BlockRows::GetGroup(int64_t row, size_t index) const {
  const int64_t panel = row / int64_t{kPackedChannels};
  const auto c = static_cast<size_t>(row % int64_t{kPackedChannels});
  IntegerGroup group;
  const Words words = LoadWords(form_.bits, numbers(panel) + index * NumberBytes(form_), c);
  for (size_t k = 0; k < kGroupNumbers; ++k) {
    const uint32_t u = words[k / 4] >> k % 4 * 8 & 0xFF;
    group.q[k] =
        form_.coded ? kCodedNumbers[u] : static_cast<int8_t>(static_cast<int>(u) - form_.offset);
  }
  const size_t unit = (form_.nested ? index / kUnitGroups : index) * (form_.has_low ? 2 : 1);
  const uint16_t* units = this->units(panel) + unit * kPackedChannels + c;
  group.unit = form_.coded ? BFloat16ToFloat(units[0]) : HalfToFloat(units[0]);
  if (form_.has_low) group.low_unit = HalfToFloat(units[kPackedChannels]);
  if (!form_.nested) return group;
  const uint8_t* factors = this->factors(panel) + index * FactorBytes(form_) + c;
  group.factor[0] = static_cast<int8_t>(factors[0]);
  group.factor[1] = static_cast<int8_t>(form_.scales == 2 ? factors[kPackedChannels] : factors[0]);
  if (form_.has_low) group.low_factor = static_cast<int8_t>(factors[kPackedChannels]);
  return group;
}

void BlockRows::ReadRow(int64_t row, float* out) const {
  std::array<float, kGroupNumbers> numbers;
  int64_t left = cols_;
  for (size_t i = 0; i < num_groups_; ++i) {
    UnpackGroup(GetGroup(row, i), form_.has_low, numbers);
    const int64_t count = std::min<int64_t>(left, kGroupNumbers);
    out = std::copy_n(numbers.begin(), count, out);
    left -= count;
  }
}

}  // namespace eta::cpu
