// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_header.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checked.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/checkpoint/gguf/gguf_metadata.h"
#include "engine/checkpoint/gguf/gguf_reader.h"

namespace eta {
namespace {

constexpr uint64_t kMaxDimension = uint64_t{1} << 40;

absl::Status Invalid(const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat("GGUF file: ", sentence));
}

absl::Status Unsupported(const std::string& sentence) {
  return absl::UnimplementedError(absl::StrCat("GGUF file: ", sentence));
}

// The least multiple of `alignment`, a power of two, that is not below `offset`.
std::optional<uint64_t> AlignUp(uint64_t offset, uint64_t alignment) {
  const auto past = CheckedAdd(offset, alignment - 1);
  if (!past) return std::nullopt;
  return *past & ~(alignment - 1);
}

// Bytes of a number; 0 for what is none.
uint64_t SizeOfNumber(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kList:
      return 0;
  }
  return 0;
}

class HeaderParser {
 public:
  HeaderParser(std::string_view bytes, uint64_t file_size)
      : bytes_(bytes.substr(0, kGgufMaxHeaderBytes)), file_size_(file_size), reader_(bytes_) {}

  absl::StatusOr<GgufHeader> Parse() {
    const std::string_view magic = reader_.Bytes(kGgufMagic.size());
    header_.version = reader_.Number<uint32_t>();
    const uint64_t tensors = reader_.Number<uint64_t>();
    const uint64_t entries = reader_.Number<uint64_t>();
    if (magic != kGgufMagic.substr(0, magic.size()) || (!reader_.ok() && bytes_.empty())) {
      return Invalid("does not begin with GGUF");
    }
    if (!reader_.ok()) return TooShort();
    RETURN_IF_ERROR(CheckVersion());
    if (tensors > kGgufMaxTensors) return Invalid("has over 100000 tensors");
    if (entries > kGgufMaxEntries) return Invalid("has over 65536 metadata entries");
    for (uint64_t i = 0; i < entries; ++i) RETURN_IF_ERROR(ReadEntry());
    if (tensors == 0 && !header_.metadata.contains(gguf_key::kSplitCount)) {
      return Invalid("has no tensors");
    }
    for (uint64_t i = 0; i < tensors; ++i) RETURN_IF_ERROR(ReadTensor());
    RETURN_IF_ERROR(PlaceTensors());
    return std::move(header_);
  }

 private:
  // What it means that the bytes at hand ended.
  absl::Status TooShort() const {
    if (bytes_.size() == kGgufMaxHeaderBytes) return Invalid("its head is over 64 MiB");
    if (bytes_.size() < file_size_) return absl::OutOfRangeError("the head goes on");
    return absl::DataLossError("GGUF file ends inside its head");
  }

  absl::Status CheckVersion() const {
    const uint32_t version = header_.version;
    if (version == 2 || version == 3) return absl::OkStatus();
    if (version != 0 && (version & 0xFFFF) == 0) return Unsupported("is big-endian");
    return Unsupported(absl::StrCat("version ", version, " is not supported, only 2 and 3"));
  }

  absl::Status ReadEntry() {
    const std::string_view key = reader_.String();
    const uint32_t type = reader_.Number<uint32_t>();
    if (!reader_.ok()) return TooShort();
    if (key.empty() || key.size() > kGgufMaxKeyBytes || FirstInvalidUtf8(key)) {
      return Invalid("has a key that is empty, over 65535 bytes or not UTF-8");
    }
    const std::string name(key);
    GgufValue value;
    const auto known = ToType(type);
    if (!known) return Invalid(absl::StrCat("key ", Quoted(name), " has the unknown type ", type));
    value.type = *known;
    RETURN_IF_ERROR(value.type == GgufType::kList ? ReadList(name, value)
                                                  : ReadScalar(name, value.type, value.bytes));
    if (!header_.metadata.emplace(name, value).second) {
      return Invalid(absl::StrCat("the key ", Quoted(name), " is there twice"));
    }
    return absl::OkStatus();
  }

  static std::optional<GgufType> ToType(uint32_t type) {
    if (type > static_cast<uint32_t>(GgufType::kFloat64)) return std::nullopt;
    return static_cast<GgufType>(type);
  }

  absl::Status ReadScalar(const std::string& name, GgufType type, std::string_view& bytes) {
    bytes = type == GgufType::kString ? reader_.String() : reader_.Bytes(SizeOfNumber(type));
    if (!reader_.ok()) return TooShort();
    if (type == GgufType::kBool && static_cast<uint8_t>(bytes.front()) > 1) {
      return Invalid(absl::StrCat("key ", Quoted(name), " has a truth value other than 0 and 1"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadList(const std::string& name, GgufValue& value) {
    const uint32_t type = reader_.Number<uint32_t>();
    value.elements = reader_.Number<uint64_t>();
    if (!reader_.ok()) return TooShort();
    const auto known = ToType(type);
    if (!known) return Invalid(absl::StrCat("key ", Quoted(name), " has the unknown type ", type));
    value.element_type = *known;
    if (value.element_type == GgufType::kList) {
      return Unsupported(absl::StrCat("key ", Quoted(name), " is a list of lists"));
    }
    if (value.elements > kGgufMaxListElements) {
      return Invalid(absl::StrCat("key ", Quoted(name), " has over 4194304 elements"));
    }
    const std::string_view begin = reader_.rest();
    for (uint64_t i = 0; i < value.elements; ++i) {
      std::string_view element;
      RETURN_IF_ERROR(ReadScalar(name, value.element_type, element));
    }
    value.bytes = begin.substr(0, begin.size() - reader_.rest().size());
    return absl::OkStatus();
  }

  absl::Status ReadTensor() {
    const std::string_view bytes = reader_.String();
    const uint32_t rank = reader_.Number<uint32_t>();
    if (!reader_.ok()) return TooShort();
    if (bytes.empty() || bytes.size() > kGgufMaxTensorNameBytes || FirstInvalidUtf8(bytes)) {
      return Invalid("a tensor has a name that is empty, over 128 bytes or not UTF-8");
    }
    const std::string name(bytes);
    const auto invalid = [&name](const std::string& sentence) {
      return Invalid(absl::StrCat("tensor ", Quoted(name), " ", sentence));
    };
    if (rank < 1 || rank > kGgufMaxRank) return invalid("has not 1 to 4 dimensions");
    GgufTensor tensor;
    for (uint32_t i = 0; i < rank; ++i) {
      const auto dimension = reader_.Number<uint64_t>();
      if (reader_.ok() && (dimension < 1 || dimension > kMaxDimension)) {
        return invalid("has a dimension that is not in [1, 2^40]");
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dimension));
    }
    const uint32_t type = reader_.Number<uint32_t>();
    tensor.offset = reader_.Number<uint64_t>();
    if (!reader_.ok()) return TooShort();
    const auto layout = FindGgmlLayout(type);
    if (!layout) {
      return Unsupported(absl::StrCat("tensor ", Quoted(name), " has type ", GgmlTypeName(type),
                                      ", which is not supported, only ", KnownGgmlTypes()));
    }
    tensor.layout = *layout;
    const auto row = static_cast<uint64_t>(tensor.shape.back());
    if (row % layout->block_elements != 0) {
      return invalid(absl::StrCat("has rows that are not whole blocks of ", layout->name, ", ",
                                  layout->block_elements, " numbers each"));
    }
    std::vector<int64_t> blocks = tensor.shape;
    blocks.back() = static_cast<int64_t>(row / layout->block_elements);
    const auto stored = CheckedBytes(blocks, layout->block_bytes);
    if (!stored || !CheckedBytes(tensor.shape, SizeOf(layout->unpacked))) {
      return invalid("has a shape whose size overflows 64 bits");
    }
    tensor.bytes = *stored;
    if (!header_.tensors.emplace(name, std::move(tensor)).second) {
      return invalid("is there twice");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Alignment() const {
    const auto found = header_.metadata.find(gguf_key::kAlignment);
    if (found == header_.metadata.end()) return kGgufAlignment;
    if (found->second.type == GgufType::kUint32) {
      const uint64_t alignment = GgufReader(found->second.bytes).Number<uint32_t>();
      if (alignment <= kGgufMaxAlignment && std::has_single_bit(alignment)) return alignment;
    }
    return Invalid("general.alignment must be a power of two, at most 65536, as uint32");
  }

  // From offsets in the data to offsets in the file.
  absl::Status PlaceTensors() {
    ASSIGN_OR_RETURN(const auto alignment, Alignment());
    const auto data = AlignUp(bytes_.size() - reader_.rest().size(), alignment);
    std::vector<std::pair<GgufTensor*, const std::string*>> order;
    for (auto& [name, tensor] : header_.tensors) order.emplace_back(&tensor, &name);
    std::sort(order.begin(), order.end(),
              [](const auto& a, const auto& b) { return a.first->offset < b.first->offset; });
    uint64_t covered = 0;
    const std::string* cut = nullptr;  // the first tensor that the file does not hold whole
    for (const auto& [tensor, name] : order) {
      if (tensor->offset != covered) {
        return Invalid(
            absl::StrCat("tensor ", Quoted(*name),
                         tensor->offset < covered ? " overlaps another" : " follows a hole"));
      }
      const auto tensor_end = CheckedAdd(covered, tensor->bytes);
      const auto padded = tensor_end ? AlignUp(*tensor_end, alignment) : std::nullopt;
      const auto in_file = CheckedAdd(*data, tensor->offset);
      const auto file_end = CheckedAdd(*data, tensor_end.value_or(0));
      if (!padded || !in_file || !file_end) return Invalid("its tensors overflow 64 bits");
      if (*file_end > file_size_ && cut == nullptr) cut = name;
      tensor->offset = *in_file;
      covered = *padded;
    }
    const auto padded_end = CheckedAdd(*data, covered);
    if (!padded_end) return Invalid("its tensors overflow 64 bits");
    if (cut != nullptr) {
      return absl::DataLossError(
          absl::StrCat("GGUF file ends before the end of tensor ", Quoted(*cut)));
    }
    if (*padded_end < file_size_) return Invalid("bytes follow the last tensor");
    return absl::OkStatus();
  }

  std::string_view bytes_;
  uint64_t file_size_;
  GgufReader reader_;
  GgufHeader header_;
};

}  // namespace

absl::StatusOr<GgufHeader> ParseGgufHeader(std::string_view bytes, uint64_t file_size) {
  return HeaderParser(bytes, file_size).Parse();
}

}  // namespace eta
