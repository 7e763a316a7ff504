#include "engine/checkpoint/gguf/gguf_header.h"

#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/gguf_writer.h"

namespace eta {
namespace {

using ::testing::HasSubstr;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

GgufWriter TwoTensors() {
  GgufWriter file;
  file.Set("general.architecture", "llama");
  file.tensors = {{"a", {4, 2}, 0, std::string(32, '\1'), {}},
                  {"b", {32}, 8, std::string(34, '\2'), {}}};
  return file;
}

absl::StatusOr<GgufHeader> Parse(const std::string& bytes) {
  return ParseGgufHeader(bytes, bytes.size());
}

void ExpectError(const std::string& bytes, absl::StatusCode code, const std::string& sentence) {
  EXPECT_THAT(Parse(bytes).status(), FailsSaying(code, sentence));
}

TEST(GgufHeader, TensorsLieWhereTheHeadSays) {
  for (const uint32_t version : {2, 3}) {
    GgufWriter file = TwoTensors();
    file.version = version;
    const std::string bytes = file.Serialize();
    const auto header = Parse(bytes).value();
    EXPECT_EQ(header.version, version);
    const GgufTensor& a = header.tensors.at("a");
    EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 4})) << "outermost first";
    EXPECT_EQ(bytes.substr(a.offset, a.bytes), std::string(32, '\1'));
    const GgufTensor& b = header.tensors.at("b");
    EXPECT_EQ(b.layout.type, GgmlType::kQ8_0);
    EXPECT_EQ(bytes.substr(b.offset, b.bytes), std::string(34, '\2'));
    EXPECT_EQ(a.offset % 32, 0u);
  }
}

// bad input: GGUF | cut in its head or data, bytes behind its data | DATA_LOSS, the first cut
//   tensor named; INVALID_ARGUMENT | BadModelTest.AGgufFileIsRefusedInOneLine
TEST(GgufHeader, EveryCutIsAnErrorAndMoreBytesAreAskedForWhereThereAreMore) {
  const GgufWriter file = TwoTensors();
  const std::string bytes = file.Serialize();
  const size_t head = file.Head().size();
  const size_t end_of_a = bytes.size() - file.tensors[1].data.size();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    EXPECT_EQ(Parse(cut).status().code(), size == 0 ? kInvalid : kDataLoss) << size;
    EXPECT_THAT(std::string(Parse(cut).status().message()),
                HasSubstr(size == 0         ? "does not begin with GGUF"
                          : size < head     ? "GGUF file ends inside its head"
                          : size < end_of_a ? "GGUF file ends before the end of tensor 'a'"
                                            : "GGUF file ends before the end of tensor 'b'"));
    const auto more = ParseGgufHeader(cut, bytes.size());
    if (size == 0) continue;
    EXPECT_EQ(more.status().code(),
              size < head ? absl::StatusCode::kOutOfRange : absl::StatusCode::kOk)
        << size;
  }
  ExpectError(bytes + std::string(30, '\0'), absl::StatusCode::kOk, "");
  ExpectError(bytes + std::string(31, '\0'), kInvalid, "bytes follow the last tensor");
}

// bad input: GGUF | empty, of another kind; version 1, big-endian | INVALID_ARGUMENT;
//   UNIMPLEMENTED, named
TEST(GgufHeader, OtherFilesAndVersionsAreNamed) {
  ExpectError("", kInvalid, "does not begin with GGUF");
  ExpectError("PK\3\4" + std::string(60, '\0'), kInvalid, "does not begin with GGUF");
  GgufWriter file = TwoTensors();
  file.version = 1;
  ExpectError(file.Serialize(), kUnimplemented, "version 1 is not supported, only 2 and 3");
  file.version = 4;
  ExpectError(file.Serialize(), kUnimplemented, "version 4 is not supported");
  file.version = 0x03000000;
  ExpectError(file.Serialize(), kUnimplemented, "is big-endian");
}

// bad input: GGUF | over 100,000 tensors, 65,536 entries | INVALID_ARGUMENT, before anything of
//   that size is allocated
TEST(GgufHeader, CountsAreBounded) {
  GgufWriter file = TwoTensors();
  for (const uint64_t count : {kGgufMaxTensors + 1, UINT64_MAX}) {
    file.stated_tensors = count;
    ExpectError(file.Serialize(), kInvalid, "has over 100000 tensors");
  }
  file.stated_tensors = 0;
  ExpectError(file.Serialize(), kInvalid, "has no tensors");
  file.stated_tensors.reset();
  file.stated_entries = UINT64_MAX;
  ExpectError(file.Serialize(), kInvalid, "has over 65536 metadata entries");
  file.stated_entries = 60'000;
  ExpectError(file.Serialize(), kDataLoss, "ends inside its head");
}

TEST(GgufHeader, EveryTypeOfValueIsRead) {
  GgufWriter file = TwoTensors();
  const std::pair<uint32_t, size_t> sizes[] = {{0, 1}, {1, 1}, {2, 2},  {3, 2},  {4, 4}, {5, 4},
                                               {6, 4}, {7, 1}, {10, 8}, {11, 8}, {12, 8}};
  for (const auto& [type, size] : sizes) {
    const std::string key = "k" + std::to_string(type);
    file.SetRaw(key, type, std::string(size, '\1'));
    file.SetRaw(key + "s", 9, RawBytes(type) + RawBytes(uint64_t{3}) + std::string(3 * size, '\1'));
  }
  file.Set("text", "abc");
  file.Set("texts", std::vector<std::string>{"a", "", "bc"});
  const std::string bytes = file.Serialize();
  const auto header = Parse(bytes).value();
  for (const auto& [type, size] : sizes) {
    const std::string key = "k" + std::to_string(type);
    EXPECT_EQ(header.metadata.at(key).bytes.size(), size);
    EXPECT_EQ(header.metadata.at(key + "s").elements, 3u);
    EXPECT_EQ(header.metadata.at(key + "s").bytes.size(), 3 * size);
  }
  EXPECT_EQ(header.metadata.at("text").bytes, "abc");
  EXPECT_EQ(header.metadata.at("texts").element_type, GgufType::kString);
}

// bad input: GGUF | over 2^22 elements of a list, a list of lists, unknown types of values, a truth
//   value of 2, a key twice | INVALID_ARGUMENT, or UNIMPLEMENTED, the key named
TEST(GgufHeader, BadEntriesAreNamed) {
  const auto with = [](uint32_t type, const std::string& value) {
    GgufWriter file = TwoTensors();
    file.SetRaw("key", type, value);
    return file.Serialize();
  };
  const auto list = [&](uint32_t type, uint64_t elements, const std::string& value) {
    return with(9, RawBytes(type) + RawBytes(elements) + value);
  };
  ExpectError(with(13, ""), kInvalid, "key 'key' has the unknown type 13");
  ExpectError(with(7, "\2"), kInvalid, "key 'key' has a truth value other than 0 and 1");
  ExpectError(list(7, 2, std::string("\1\3", 2)), kInvalid, "truth value other than 0 and 1");
  ExpectError(list(99, 0, ""), kInvalid, "key 'key' has the unknown type 99");
  ExpectError(list(9, 1, RawBytes(uint32_t{4}) + RawBytes(uint64_t{0})), kUnimplemented,
              "key 'key' is a list of lists");
  ExpectError(list(4, kGgufMaxListElements + 1, ""), kInvalid, "over 4194304 elements");
  ExpectError(list(4, UINT64_MAX, ""), kInvalid, "key 'key' has over 4194304 elements");
  ExpectError(with(8, RawBytes(UINT64_MAX)), kDataLoss, "ends inside its head");
  ExpectError(list(8, 2, RawBytes(UINT64_MAX)), kDataLoss, "ends inside its head");
  GgufWriter file = TwoTensors();
  file.SetRaw("", 7, "\1");
  ExpectError(file.Serialize(), kInvalid, "a key that is empty");
  file = TwoTensors();
  file.SetRaw("\xFF", 7, "\1");
  ExpectError(file.Serialize(), kInvalid, "not UTF-8");
  file = TwoTensors();
  file.SetRaw("twin", 7, "\1");
  file.SetRaw("other", 7, "\1" + GgufString("twin") + RawBytes(uint32_t{7}) + "\1");
  file.stated_entries = 4;
  ExpectError(file.Serialize(), kInvalid, "the key 'twin' is there twice");
}

// bad input: GGUF | tensors of bad dimensions, sizes, rows, types; overlaps, holes, a name twice |
//   INVALID_ARGUMENT, or UNIMPLEMENTED, the tensor named
TEST(GgufHeader, BadTensorsAreNamed) {
  const auto with = [](const std::function<void(GgufWriter&)>& change) {
    GgufWriter file = TwoTensors();
    change(file);
    return file.Serialize();
  };
  const auto change_a = [&](const std::function<void(GgufWriter::Tensor&)>& change) {
    return with([&](GgufWriter& file) { change(file.At("a")); });
  };
  ExpectError(change_a([](auto& a) { a.dimensions = {}; }), kInvalid, "has not 1 to 4 dimensions");
  ExpectError(change_a([](auto& a) {
                a.dimensions = {8, 1, 1, 1, 1};
              }),
              kInvalid, "tensor 'a' has not 1 to 4 dimensions");
  ExpectError(change_a([](auto& a) {
                a.dimensions = {8, 0};
              }),
              kInvalid, "tensor 'a' has a dimension that is not in [1, 2^40]");
  ExpectError(change_a([](auto& a) { a.dimensions = {UINT64_MAX}; }), kInvalid, "not in [1, 2^40]");
  ExpectError(change_a([](auto& a) {
                a.dimensions = {1 << 30, 1 << 30, 1 << 30};
              }),
              kInvalid, "tensor 'a' has a shape whose size overflows 64 bits");
  ExpectError(change_a([](auto& a) { a.type = 23; }), kUnimplemented,
              "tensor 'a' has type IQ4_XS, which is not supported, only F32");
  ExpectError(change_a([](auto& a) { a.type = 77; }), kUnimplemented, "has type number 77");
  ExpectError(change_a([](auto& a) { a.type = 8; }), kInvalid,
              "tensor 'a' has rows that are not whole blocks of Q8_0, 32 numbers each");
  ExpectError(change_a([](auto& a) { a.name = "b"; }), kInvalid, "tensor 'b' is there twice");
  ExpectError(change_a([](auto& a) { a.name = ""; }), kInvalid, "name that is empty");
  ExpectError(change_a([](auto& a) { a.name = std::string(129, 'x'); }), kInvalid,
              "over 128 bytes");
  ExpectError(change_a([](auto& a) {
                a.dimensions = {4, 4};
              }),
              kInvalid, "tensor 'b' overlaps another");
  ExpectError(change_a([](auto& a) { a.offset = 32; }), kInvalid, "tensor 'a' follows a hole");
  ExpectError(with([](GgufWriter& file) { file.At("b").offset = 0; }), kInvalid,
              "overlaps another");
  ExpectError(with([](GgufWriter& file) { file.At("b").offset = 33; }), kInvalid,
              "tensor 'b' follows a hole");
  ExpectError(with([](GgufWriter& file) { file.At("b").offset = UINT64_MAX; }), kInvalid,
              "tensor 'b' follows a hole");
  ExpectError(with([](GgufWriter& file) {
                file.At("b").dimensions = {32, 9};
              }),
              kDataLoss, "ends before the end of tensor 'b'");
}

// bad input: GGUF | an alignment that is no power of two | INVALID_ARGUMENT
TEST(GgufHeader, TheAlignmentIsAPowerOfTwo) {
  GgufWriter file = TwoTensors();
  file.alignment = 64;
  file.Set("general.alignment", uint32_t{64});
  const std::string bytes = file.Serialize();
  EXPECT_EQ(Parse(bytes).value().tensors.at("b").offset % 64, 0u);
  for (const uint32_t alignment : {0u, 3u, 131072u, UINT32_MAX}) {
    file.Set("general.alignment", alignment);
    ExpectError(file.Serialize(), kInvalid, "general.alignment must be a power of two");
  }
  file.Set("general.alignment", "32");
  ExpectError(file.Serialize(), kInvalid, "general.alignment must be a power of two");
}

}  // namespace
}  // namespace eta
