#include "engine/model/gguf_writer/pack_blocks.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/weights/pack_groups.h"

namespace eta {
namespace {

absl::Status TooLarge(size_t first, const GgmlLayout& layout) {
  return absl::OutOfRangeError(
      absl::StrCat("element ", first, " or one of its block cannot be stored as ", layout.name));
}

}  // namespace

absl::StatusOr<std::vector<std::byte>> PackBlocks(const GgmlLayout& layout,
                                                  std::span<const float> values) {
  const size_t count = layout.block_elements;
  std::vector<std::byte> blocks(values.size() / count * layout.block_bytes);
  std::byte* block = blocks.data();
  for (size_t first = 0; first < values.size(); first += count, block += layout.block_bytes) {
    if (layout.type == GgmlType::kQ8_0) {
      if (!PackQ8_0(values.subspan(first, count), block)) return TooLarge(first, layout);
      continue;
    }
    StoreElement(layout.unpacked, block, 0, values[first]);
    if (!std::isfinite(LoadElement(layout.unpacked, block, 0))) return TooLarge(first, layout);
  }
  return blocks;
}

}  // namespace eta
