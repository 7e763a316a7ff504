// lint: untrusted-input
#include "engine/checkpoint/expert_stacks.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checked.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "kernels/weights/ggml_type.h"

namespace eta {
namespace {

constexpr std::string_view kExperts = ".mlp.experts.";
constexpr std::string_view kRouter = ".mlp.router.";
constexpr std::string_view kBlocks = "_blocks";
constexpr std::string_view kScales = "_scales";
constexpr int64_t kMaxExperts = 1024;
constexpr int64_t kBlockNumbers = 32;
constexpr uint64_t kCodeBytes = 16;  // of a block, two numbers each

// What a stack becomes: every step-th channel of a projection, from `first` on.
struct Projection {
  std::string_view stack;
  std::string_view name;
  uint64_t first;
  uint64_t step;
};
constexpr Projection kProjections[] = {
    {"gate_up_proj", "gate_proj", 0, 2},
    {"gate_up_proj", "up_proj", 1, 2},
    {"down_proj", "down_proj", 0, 1},
};

absl::Status Unfit(const std::string& name, const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), " ", sentence));
}

// The name behind "...mlp.experts.", if it is one of stacks; else empty.
std::string_view StackOf(std::string_view name) {
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return {};
  name.remove_prefix(at + kExperts.size());
  const bool is_stack = std::ranges::any_of(
      kProjections, [&](const Projection& of) { return name.starts_with(of.stack); });
  return is_stack ? name : std::string_view();
}

const GgmlLayout& Mxfp4() {
  static const GgmlLayout layout = *FindGgmlLayout(static_cast<uint32_t>(GgmlType::kMXFP4));
  return layout;
}

// A file's block has number 2 i in the low half of byte i and number 2 i + 1 in the high one; of
// ggml's these are numbers i and i + 16.
void ToGgmlBlock(const std::byte* codes, std::byte scale, std::byte* block) {
  block[0] = scale;
  const auto code = [codes](size_t i) {
    const auto both = static_cast<unsigned>(codes[i / 2]);
    return i % 2 == 0 ? both & 0x0F : both >> 4;
  };
  for (size_t i = 0; i < kCodeBytes; ++i) {
    block[1 + i] = static_cast<std::byte>(code(i) | code(i + kCodeBytes) << 4);
  }
}

}  // namespace

class ExpertStacks::Presenter {
 public:
  Presenter(std::map<std::string, TensorInfo>& tensors, std::map<std::string, Part>& parts)
      : tensors_(tensors), parts_(parts) {}

  absl::Status Run() {
    for (const auto& [name, info] : tensors_) {
      const std::string_view stack = StackOf(name);
      if (stack.empty()) continue;
      RETURN_IF_ERROR(AddStack(name, std::string(stack), info));
    }
    if (parts_.empty()) return absl::OkStatus();
    for (const auto& [name, info] : tensors_) {
      const size_t at = name.find(kRouter);
      if (at == std::string::npos) continue;
      std::string renamed = name;
      renamed.replace(at, kRouter.size(), ".mlp.gate.");
      const auto elements = CheckedBytes(info.shape, 1);
      RETURN_IF_ERROR(Add(renamed, info.dtype, info.shape,
                          {.source = name, .width = *elements, .element = SizeOf(info.dtype)}));
    }
    for (const auto& [name, part] : parts_) {
      tensors_.erase(part.source);
      tensors_.erase(part.scales);
    }
    for (auto& [name, info] : made_) {
      if (!tensors_.emplace(name, std::move(info)).second) {
        return Unfit(name, "is there twice, for itself and in a stack");
      }
    }
    if (tensors_.size() <= kSafetensorsMaxTensors) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint has over ",
                                                   kSafetensorsMaxTensors,
                                                   " tensors, each expert counted for itself"));
  }

 private:
  absl::Status AddStack(const std::string& name, const std::string& stack, const TensorInfo& info) {
    if (stack.ends_with(kScales)) {
      const std::string blocks =
          absl::StrCat(name.substr(0, name.size() - kScales.size()), std::string(kBlocks));
      return tensors_.contains(blocks) ? absl::OkStatus()
                                       : Unfit(name, absl::StrCat("has no ", Quoted(blocks)));
    }
    if (info.shape.empty() || info.shape[0] < 1 || info.shape[0] > kMaxExperts) {
      return Unfit(name, absl::StrCat("must have 1 to ", kMaxExperts, " experts"));
    }
    const std::string layer = name.substr(0, name.size() - stack.size());
    for (const Projection& to : kProjections) {
      if (!stack.starts_with(to.stack)) continue;
      const std::string_view kind = std::string_view(stack).substr(to.stack.size());
      const bool is_bias = kind == "_bias";
      absl::StatusOr<Part> part = Unfit(name, "is not known");
      if (kind.empty()) part = NumbersPart(name, info, 3);
      if (is_bias) part = NumbersPart(name, info, 2);
      if (kind == kBlocks) part = BlocksPart(name, info);
      RETURN_IF_ERROR(part.status());
      part->first = to.first;
      part->step = to.step;
      RETURN_IF_ERROR(AddExperts(layer, std::string(to.name), is_bias, info, *part));
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<Part> NumbersPart(const std::string& name, const TensorInfo& info,
                                          size_t dimensions) {
    if (info.shape.size() != dimensions || info.shape[1] < 1 || info.shape.back() < 1) {
      return Unfit(name, absl::StrCat("must have ", dimensions, " dimensions"));
    }
    return Part{.source = name,
                .depth = dimensions == 2 ? 1 : static_cast<uint64_t>(info.shape[1]),
                .width = static_cast<uint64_t>(info.shape.back()),
                .element = SizeOf(info.dtype)};
  }

  absl::StatusOr<Part> BlocksPart(const std::string& name, const TensorInfo& info) const {
    const std::vector<int64_t>& shape = info.shape;
    if (info.dtype != DType::kUInt8 || shape.size() != 4 || shape[1] < 1 || shape[2] < 1 ||
        shape[2] > INT32_MAX / kBlockNumbers || shape[3] != int64_t{kCodeBytes}) {
      return Unfit(name, "must be uint8 of the shape [experts, rows, blocks, 16]");
    }
    Part part = {
        .source = name,
        .scales = absl::StrCat(name.substr(0, name.size() - kBlocks.size()), std::string(kScales)),
        .depth = static_cast<uint64_t>(shape[1]),
        .width = static_cast<uint64_t>(shape[2])};
    const auto scales = tensors_.find(part.scales);
    if (scales == tensors_.end()) {
      return Unfit(name, absl::StrCat("has no scales ", Quoted(part.scales)));
    }
    const std::vector<int64_t> of_scales(shape.begin(), shape.begin() + 3);
    if (scales->second.dtype != DType::kUInt8 || scales->second.shape != of_scales) {
      return Unfit(part.scales, absl::StrCat("must be uint8 of the shape [", shape[0], ", ",
                                             shape[1], ", ", shape[2], "]"));
    }
    return part;
  }

  absl::Status AddExperts(const std::string& layer, const std::string& name, bool is_bias,
                          const TensorInfo& info, Part part) {
    const bool packed = !part.scales.empty();
    const uint64_t channels = packed ? part.depth : part.width;
    if (channels % part.step != 0) return Unfit(part.source, "has an odd number of channels");
    std::vector<int64_t> shape = {static_cast<int64_t>(channels / part.step)};
    // cannot wrap: BlocksPart bounds the blocks of a row
    if (packed) shape.push_back(static_cast<int64_t>(part.width) * kBlockNumbers);
    if (!packed && !is_bias) shape.push_back(static_cast<int64_t>(part.depth));
    for (int64_t expert = 0; expert < info.shape[0]; ++expert) {
      part.expert = static_cast<uint64_t>(expert);
      RETURN_IF_ERROR(Add(absl::StrCat(layer, expert, ".", name, is_bias ? ".bias" : ".weight"),
                          packed ? Mxfp4().unpacked : info.dtype, shape, part));
    }
    return absl::OkStatus();
  }

  absl::Status Add(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                   const Part& part) {
    const auto bytes = CheckedBytes(shape, SizeOf(dtype));
    if (!bytes) return Unfit(part.source, "has a shape whose size overflows 64 bits");
    if (made_.size() >= kSafetensorsMaxTensors || !parts_.emplace(name, part).second) {
      return Unfit(part.source, "is there twice, as numbers and as blocks");
    }
    TensorInfo info;
    info.dtype = dtype;
    info.shape = shape;
    info.end = *bytes;
    made_.emplace(name, std::move(info));
    return absl::OkStatus();
  }

  std::map<std::string, TensorInfo>& tensors_;
  std::map<std::string, Part>& parts_;
  std::map<std::string, TensorInfo> made_;
};

absl::StatusOr<ExpertStacks> ExpertStacks::Present(std::map<std::string, TensorInfo>& tensors) {
  ExpertStacks out;
  RETURN_IF_ERROR(Presenter(tensors, out.tensors_).Run());
  return out;
}

absl::StatusOr<StoredTensor> ExpertStacks::ReadBlocks(const Part& part, const Read& read) {
  // cannot wrap: counts blocks of a part of a file
  const uint64_t count = part.depth * part.width;
  // cannot wrap: bytes of a part of a file
  const uint64_t bytes = count * kCodeBytes;
  // cannot wrap: a place in a file
  ASSIGN_OR_RETURN(const auto codes, read(part.source, part.expert * bytes, bytes));
  // cannot wrap: likewise
  ASSIGN_OR_RETURN(const auto scales, read(part.scales, part.expert * count, count));
  StoredTensor out;
  out.blocks = Mxfp4();
  const uint64_t block_bytes = out.blocks->block_bytes;
  const uint64_t blocks = count / part.step;
  // cannot wrap: no more bytes than those of the file
  out.bytes.resize(blocks * block_bytes);
  std::span<std::byte> to = out.bytes;
  for (uint64_t row = part.first; row < part.depth; row += part.step) {
    // cannot wrap: a place in `scales`
    const uint64_t from = row * part.width;
    for (uint64_t i = from; i < from + part.width; ++i) {
      // cannot wrap: a place in `codes`
      ToGgmlBlock(&codes[i * kCodeBytes], scales[i], to.data());
      to = to.subspan(block_bytes);
    }
  }
  return out;
}

absl::StatusOr<StoredTensor> ExpertStacks::ReadTurned(const Part& part, const Read& read) {
  const uint64_t element = part.element;
  // cannot wrap: bytes of a part of a file
  const uint64_t bytes = part.depth * part.width * element;
  // cannot wrap: a place in a file
  ASSIGN_OR_RETURN(const auto numbers, read(part.source, part.expert * bytes, bytes));
  const uint64_t rows = part.width / part.step;
  StoredTensor out;
  // cannot wrap: no more bytes than those of the file
  out.bytes.resize(rows * part.depth * element);
  // In squares, of which both sides stay in the cache.
  constexpr uint64_t kSide = 32;
  for (uint64_t row = 0; row < rows; row += kSide) {
    const uint64_t row_end = std::min(rows, row + kSide);
    for (uint64_t j = 0; j < part.depth; ++j) {
      for (uint64_t i = row; i < row_end; ++i) {
        // cannot wrap: a place in `out`
        const uint64_t to = (i * part.depth + j) * element;
        // cannot wrap: a place in `numbers`
        const uint64_t from = (j * part.width + part.first + i * part.step) * element;
        std::memcpy(&out.bytes[to], &numbers[from], element);
      }
    }
  }
  return out;
}

absl::StatusOr<StoredTensor> ExpertStacks::ReadStored(const std::string& name,
                                                      const Read& read) const {
  const Part& part = tensors_.at(name);
  return part.scales.empty() ? ReadTurned(part, read) : ReadBlocks(part, read);
}

absl::StatusOr<std::vector<std::byte>> ExpertStacks::ReadNumbers(const std::string& name,
                                                                 const Read& read) const {
  ASSIGN_OR_RETURN(auto stored, ReadStored(name, read));
  if (!stored.blocks) return std::move(stored.bytes);
  const uint64_t blocks = stored.bytes.size() / stored.blocks->block_bytes;
  // cannot wrap: Present() has checked the size of the numbers
  std::vector<std::byte> numbers(blocks * stored.blocks->block_elements * sizeof(float));
  UnpackBlocks(*stored.blocks, stored.bytes, numbers);
  return numbers;
}

}  // namespace eta
