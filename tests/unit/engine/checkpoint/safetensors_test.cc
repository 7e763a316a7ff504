#include "engine/checkpoint/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"

namespace eta {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

std::string Length(uint64_t value) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &value, 8);
  return bytes;
}

std::string FileOf(const std::string& json, size_t data_bytes = 0) {
  return Length(json.size()) + json + std::string(data_bytes, '\0');
}

absl::StatusOr<SafetensorsHeader> Parse(const std::string& file) {
  return ParseSafetensorsHeader(file, file.size());
}

// Of a header whose tensors would cover `data_bytes`.
absl::StatusCode Code(const std::string& json, size_t data_bytes = 0) {
  return Parse(FileOf(json, data_bytes)).status().code();
}

// Expects that such a header is refused with `sentence`.
void ExpectInvalid(const std::string& json, size_t data_bytes, const std::string& sentence) {
  const absl::Status status = Parse(FileOf(json, data_bytes)).status();
  EXPECT_EQ(status.code(), kInvalid) << json.substr(0, 60);
  EXPECT_THAT(std::string(status.message()), HasSubstr("safetensors header: " + sentence));
}

std::string Tensor(const std::string& name, const std::string& shape, uint64_t begin, uint64_t end,
                   const std::string& dtype = "F32") {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[", shape,
                      "],\"data_offsets\":[", begin, ",", end, "]}");
}

std::string Header(const std::vector<std::string>& members) {
  std::string json;
  for (const std::string& member : members)
    absl::StrAppend(&json, json.empty() ? "{" : ",", member);
  return json + "}";
}

TEST(SafetensorsHeader, ReadsNamesTypesShapesAndMetadata) {
  const std::string json = Header({R"("__metadata__":{"format":"pt"})", Tensor("b", "2,3", 8, 32),
                                   Tensor("a", "", 0, 8, "I64"), Tensor("none", "0,7", 32, 32)});
  const auto header = Parse(FileOf(json + "   ", 32)).value();
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.data_begin, 8 + json.size() + 3);
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors.at("a").dtype, DType::kInt64);
  EXPECT_THAT(header.tensors.at("a").shape, ElementsAre());
  EXPECT_THAT(header.tensors.at("b").shape, ElementsAre(2, 3));
  EXPECT_EQ(header.tensors.at("b").begin, 8u);
  EXPECT_THAT(header.tensors.at("none").shape, ElementsAre(0, 7));
}

TEST(SafetensorsHeader, AnEmptyObjectIsAFileWithoutTensors) {
  EXPECT_TRUE(Parse(FileOf("{}")).value().tensors.empty());
}

// bad input: Weights | file under 8 bytes | DATA_LOSS; this and every damage of a model's files:
//   exit code 2, one line, never listening
TEST(SafetensorsHeader, UnderEightBytesIsDataLoss) {
  for (const char* bytes : {"", "1234567"}) {
    EXPECT_EQ(Parse(bytes).status(), absl::DataLossError("safetensors file is under 8 bytes"));
  }
}

// bad input: Weights | truncated header or data | DATA_LOSS |
//   BadModelTest.WeightsAreRefusedInOneLine
TEST(SafetensorsHeader, EveryCutOfAGoodFileIsDataLoss) {
  const std::string file = FileOf(Header({Tensor("a}\\\"", "4", 0, 16)}), 16);
  ASSERT_TRUE(Parse(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    const absl::Status status = Parse(file.substr(0, size)).status();
    EXPECT_EQ(status.code(), kDataLoss) << size;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(size < 8                  ? "is under 8 bytes"
                          : size < file.size() - 16 ? "ends inside its header"
                                                    : "ends before its last tensor"));
  }
}

// bad input: Weights | header length over the file | INVALID_ARGUMENT
TEST(SafetensorsHeader, ALengthThatRunsPastTheFileIsInvalid) {
  const std::string json = Header({Tensor("a", "4", 0, 16)});
  EXPECT_EQ(Parse(Length(json.size() + 17) + json + std::string(16, 'x')).status().code(),
            kInvalid);
  EXPECT_EQ(Parse(Length(100) + "no header").status().code(), kInvalid);
  EXPECT_THAT(std::string(Parse(Length(100) + "{}").status().message()),
              HasSubstr("its length runs past the end of the file"));
}

// bad input: Weights | header length over 8 MiB, near 2^64 | INVALID_ARGUMENT, before anything is
//   allocated
TEST(SafetensorsHeader, ALengthOverTheCapIsRefusedBeforeAnythingIsAllocated) {
  for (const uint64_t length : {kSafetensorsMaxHeaderBytes + 1, uint64_t{1} << 32,
                                uint64_t{1} << 63, UINT64_MAX - 7, UINT64_MAX}) {
    // The file claims to be huge too, so only the cap can refuse it.
    EXPECT_EQ(ParseSafetensorsHeader(Length(length) + "{}", UINT64_MAX).status(),
              absl::InvalidArgumentError("safetensors header: its length is over 8 MiB"));
  }
}

// bad input: Weights | header not UTF-8, without a brace in front, with junk behind |
//   INVALID_ARGUMENT
TEST(SafetensorsHeader, MustBeUtf8StartWithABraceAndEndWithIt) {
  ExpectInvalid("{\"__metadata__\":{\"a\":\"\xFF\"}}", 0, "is not UTF-8 at byte");
  EXPECT_EQ(Code("{\"__metadata__\":{\"a\":\"\xED\xA0\x80\"}}"), kInvalid);
  ExpectInvalid(" {}", 0, "does not start with a brace");
  EXPECT_EQ(Code("\xEF\xBB\xBF{}"), kInvalid);
  EXPECT_EQ(Code("[]"), kInvalid);
  EXPECT_EQ(Code(""), kInvalid);
  EXPECT_EQ(Code("{}x"), kInvalid);
  EXPECT_EQ(Code("{}\n"), kInvalid);
  ExpectInvalid("{}{}", 0, "is not JSON at byte 3");
  EXPECT_EQ(Code(std::string("{}\0{}", 5)), kInvalid);
  EXPECT_EQ(Code("{} "), absl::StatusCode::kOk);
}

// bad input: Weights | JSON nested over 4 deep | INVALID_ARGUMENT, without recursion
TEST(SafetensorsHeader, DeepNestingIsRefusedWithoutRecursion) {
  const std::string array = "an array stands where none is allowed";
  ExpectInvalid(R"({"a":{"shape":[[[1]]]}})", 0, array);
  ExpectInvalid("{\"a\":" + std::string(4'000'000, '[') + "}", 0, array);
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(Code(objects + "}"), kInvalid);
}

// bad input: Weights | number with sign, fraction, exponent, over 2^48 | INVALID_ARGUMENT
TEST(SafetensorsHeader, NumbersAreWholeAndAtMostTwoToThe48) {
  for (const std::string number : {"-1", "-0", "1.0", "1e0", "281474976710657",
                                   "18446744073709551616", "1E400", "null", "true", "\"1\""}) {
    const std::string json =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[" + number + "],\"data_offsets\":[0,1]}}";
    EXPECT_EQ(Code(json, 1), kInvalid) << number;
  }
  const auto refuse = [](const std::string& number, const std::string& why) {
    ExpectInvalid(Header({Tensor("a", number, 0, 1, "U8")}), 1, why);
  };
  refuse("-1", "a number has a sign");
  refuse("1.0", "a number has a fraction or an exponent");
  refuse("1e0", "a number has a fraction or an exponent");
  refuse("281474976710657", "a number is over 2^48");
}

// bad input: Weights | a name twice, also by an escape | INVALID_ARGUMENT
TEST(SafetensorsHeader, ANameMayOccurOnceHoweverItIsSpelled) {
  for (const char* name : {"a", "\\u0061"}) {
    ExpectInvalid(Header({Tensor("a", "1", 0, 4), Tensor(name, "1", 4, 8)}), 8,
                  "the name 'a' occurs twice");
  }
  EXPECT_EQ(Code(R"({"__metadata__":{"a":"1","a":"2"}})"), kInvalid);
  EXPECT_EQ(Code(R"({"__metadata__":{},"__metadata__":{}})"), kInvalid);
  EXPECT_EQ(Code(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
            kInvalid);
}

// bad input: Weights | tensors that overlap, holes, an end before its start, bytes after the last |
//   INVALID_ARGUMENT
TEST(SafetensorsHeader, TensorsCoverTheDataExactly) {
  const auto header = [](uint64_t a0, uint64_t a1, uint64_t b0, uint64_t b1) {
    return Header({Tensor("a", absl::StrCat(a1 - a0), a0, a1, "U8"),
                   Tensor("b", absl::StrCat(b1 - b0), b0, b1, "U8")});
  };
  const auto two = [&](uint64_t a0, uint64_t a1, uint64_t b0, uint64_t b1, size_t data_bytes) {
    return Code(header(a0, a1, b0, b1), data_bytes);
  };
  EXPECT_EQ(two(0, 4, 4, 8, 8), absl::StatusCode::kOk);
  EXPECT_EQ(two(4, 8, 0, 4, 8), absl::StatusCode::kOk);
  ExpectInvalid(header(0, 4, 3, 7), 7, "tensor 'b' overlaps another");
  EXPECT_EQ(two(0, 4, 0, 4, 4), kInvalid) << "two names for the same bytes";
  ExpectInvalid(header(0, 4, 5, 9), 9, "tensor 'b' follows a hole");
  EXPECT_EQ(two(1, 4, 4, 8, 8), kInvalid) << "hole before the first";
  ExpectInvalid(header(0, 4, 4, 8), 9, "bytes follow the last tensor");
  EXPECT_EQ(Code("{}", 1), kInvalid) << "a byte that belongs to none";
  ExpectInvalid(Header({Tensor("a", "1", 4, 0)}), 4, "tensor 'a' ends before it starts");
  EXPECT_EQ(two(0, 4, 4, 8, 7), kDataLoss) << "cut off";
}

// bad input: Weights | sizes that overflow; rank over 8 | INVALID_ARGUMENT
TEST(SafetensorsHeader, SizesThatOverflowAreRefused) {
  const std::string big = "281474976710656";  // 2^48
  ExpectInvalid(Header({Tensor("a", big + "," + big, 0, 0)}), 0,
                "tensor 'a' has a shape whose size overflows 64 bits");
  EXPECT_EQ(Code(Header({Tensor("a", big + ",16384", 0, 0, "F64")})), kInvalid);
  EXPECT_EQ(Code(Header({Tensor("a", "0," + big + "," + big, 0, 0)})), absl::StatusCode::kOk);
  ExpectInvalid(Header({Tensor("a", "1,1,1,1,1,1,1,1,1", 0, 4)}), 4,
                "a shape has over 8 dimensions");
  EXPECT_EQ(Code(Header({Tensor("a", "1,1,1,1,1,1,1,1", 0, 4)}), 4), absl::StatusCode::kOk);
}

// bad input: Weights | over 100,000 tensors | INVALID_ARGUMENT
TEST(SafetensorsHeader, HoldsAtMost100000Tensors) {
  std::vector<std::string> members;
  for (int i = 0; i <= 100'000; ++i) {
    members.push_back(
        absl::StrCat("\"", i, R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})"));
  }
  ExpectInvalid(Header(members), 0, "has over 100000 tensors");
  members.pop_back();
  EXPECT_EQ(Code(Header(members)), absl::StatusCode::kOk);
}

// bad input: Weights | span not shape times type | INVALID_ARGUMENT
TEST(SafetensorsHeader, TheSpanFitsShapeAndType) {
  ExpectInvalid(Header({Tensor("a", "3", 0, 16)}), 16,
                "tensor 'a' has data_offsets that do not fit shape and dtype");
  EXPECT_EQ(Code(Header({Tensor("a", "4", 0, 16, "BF16")}), 16), kInvalid);
  EXPECT_EQ(Code(Header({Tensor("a", "", 0, 0)})), kInvalid);
}

// bad input: Weights | unsupported type | UNIMPLEMENTED, named
TEST(SafetensorsHeader, AnUnknownTypeIsUnimplementedAndNamed) {
  for (const std::string dtype : {"F8_E5M2", "BOOL", "U16", "float32", ""}) {
    const auto header = Parse(FileOf(Header({Tensor("a", "1", 0, 4, dtype)}), 4));
    EXPECT_THAT(header.status(), FailsSaying(absl::StatusCode::kUnimplemented,
                                             "has the unsupported dtype '" + dtype + "'"));
  }
}

TEST(SafetensorsHeader, EveryTensorHasItsThreeFieldsAndNoOthers) {
  EXPECT_EQ(Code(R"({"a":{}})"), kInvalid);
  EXPECT_EQ(Code(R"({"a":{"dtype":"U8","shape":[1]}})"), kInvalid);
  EXPECT_EQ(Code(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1), kInvalid);
  EXPECT_EQ(Code(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", 1), kInvalid);
  EXPECT_EQ(Code(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1), kInvalid);
  EXPECT_EQ(Code(R"({"a":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})", 1), kInvalid);
  EXPECT_EQ(Code(R"({"a":1})"), kInvalid);
  EXPECT_EQ(Code(R"({"a":[1]})"), kInvalid);
  EXPECT_EQ(Code(R"({"__metadata__":{"a":1}})"), kInvalid);
  EXPECT_EQ(Code(R"({"__metadata__":{"a":{}}})"), kInvalid);
  EXPECT_EQ(Code(R"({"__metadata__":"a"})"), kInvalid);
}

TEST(SafetensorsHeader, ErrorsShowHostileNamesEscapedAndCut) {
  const auto header =
      Parse(FileOf(Header({Tensor("a\\n\\u001b[31m" + std::string(500, 'x'), "1", 0, 3)}), 3));
  const std::string message(header.status().message());
  EXPECT_THAT(message, HasSubstr("'a\\n\\x1b[31mxxx"));
  EXPECT_LT(message.size(), 300u);
}

class SafetensorsFileTest : public testing::Test {
 protected:
  const std::vector<float> numbers_ = {1, 2, 3, 4, 5, 6};
  const std::vector<uint8_t> bytes_ = {7, 8, 9};

  std::string Path() const { return folder_.path() + "/model.safetensors"; }
  absl::Status Write() const {
    return WriteSafetensors(
        Path(), {{"format", "pt"}},
        {{"bytes", {DType::kUInt8, {3}, std::as_bytes(std::span(bytes_))}},
         {"numbers", {DType::kFloat32, {2, 3}, std::as_bytes(std::span(numbers_))}}});
  }

  TempFolder folder_;
};

TEST_F(SafetensorsFileTest, WhatWasWrittenIsRead) {
  ASSERT_TRUE(Write().ok());
  const auto file = SafetensorsFile::Open(Path()).value();
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_THAT(file.tensors().at("numbers").shape, ElementsAre(2, 3));
  EXPECT_TRUE(std::ranges::equal(file.Read("numbers").value(), std::as_bytes(std::span(numbers_))));
  EXPECT_TRUE(std::ranges::equal(file.Read("bytes").value(), std::as_bytes(std::span(bytes_))));
  EXPECT_EQ(file.Read("other").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SafetensorsFileTest, EveryTensorIsWrittenAligned) {
  ASSERT_TRUE(Write().ok());
  const auto header = Parse(ReadFile(Path())).value();
  EXPECT_EQ(header.data_begin % 8, 0u);
  EXPECT_EQ(header.tensors.at("numbers").begin, 0u);
}

TEST_F(SafetensorsFileTest, DataThatDoesNotFitIsNotWritten) {
  EXPECT_EQ(WriteSafetensors(Path(), {},
                             {{"a", {DType::kFloat32, {2}, std::as_bytes(std::span(bytes_))}}})
                .code(),
            kInvalid);
  EXPECT_EQ(
      WriteSafetensors(Path(), {},
                       {{"__metadata__", {DType::kUInt8, {3}, std::as_bytes(std::span(bytes_))}}})
          .code(),
      kInvalid);
  EXPECT_FALSE(std::filesystem::exists(Path()));
}

TEST_F(SafetensorsFileTest, TheEmbeddedModelOpens) {
  const auto file = SafetensorsFile::Open(ETA_SOURCE_DIR "/models/eta-27m/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 90u);
  EXPECT_EQ(file->Read("model.norm.weight").value().size(), 1024u);
}

// bad input: Weights | changed while they are read | DATA_LOSS; what is loaded does not change |
//   LoadedModel.DoesNotChangeWithItsFiles
TEST_F(SafetensorsFileTest, AFileThatChangesAfterItWasOpenedIsDataLoss) {
  ASSERT_TRUE(Write().ok());
  auto file = SafetensorsFile::Open(Path());
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(truncate(Path().c_str(), 100), 0);
  EXPECT_EQ(file->Read("numbers").status().code(), kDataLoss);

  ASSERT_TRUE(Write().ok());
  file = SafetensorsFile::Open(Path());
  ASSERT_TRUE(file.ok());
  usleep(20'000);  // change times tick with the kernel's clock
  std::fstream(Path(), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-1, std::ios::end)
      .put('x');
  EXPECT_EQ(file->Read("numbers").status().code(), kDataLoss);
}

// bad input: Weights | a file that every user may write | FAILED_PRECONDITION
TEST_F(SafetensorsFileTest, AFileThatEveryUserMayWriteIsRefused) {
  ASSERT_TRUE(Write().ok());
  ASSERT_EQ(chmod(Path().c_str(), 0666), 0);
  EXPECT_EQ(SafetensorsFile::Open(Path()).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(SafetensorsFile::Open(Path(), {.allow_writable_by_others = true}).ok());
}

TEST_F(SafetensorsFileTest, OnlyRegularFilesAreOpened) {
  EXPECT_EQ(SafetensorsFile::Open(Path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::Open(folder_.path()).status().code(), kInvalid);
  EXPECT_EQ(SafetensorsFile::Open("/dev/zero").status().code(), kInvalid);
  ASSERT_EQ(mkfifo(Path().c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsFile::Open(Path()).status().code(), kInvalid);
}

TEST(FirstNonFinite, FindsNanAndInfinityInEveryFloatingType) {
  std::vector<float> floats(10'000, 3.4e38f);
  EXPECT_EQ(FirstNonFinite(std::as_bytes(std::span(floats)), DType::kFloat32), std::nullopt);
  floats[9'000] = std::numeric_limits<float>::quiet_NaN();
  floats[9'001] = -INFINITY;
  EXPECT_EQ(FirstNonFinite(std::as_bytes(std::span(floats)), DType::kFloat32), 9'000);
  floats[5] = -INFINITY;
  EXPECT_EQ(FirstNonFinite(std::as_bytes(std::span(floats)), DType::kFloat32), 5);
  EXPECT_EQ(FirstNonFinite(std::as_bytes(std::span(floats)), DType::kInt32), std::nullopt);

  std::vector<double> doubles = {0.0, 1e308, -INFINITY};
  EXPECT_EQ(FirstNonFinite(std::as_bytes(std::span(doubles)), DType::kFloat64), 2);
  std::vector<uint16_t> halves = {0x7BFF, 0xFBFF, 0x7C01};
  EXPECT_EQ(FirstNonFinite(std::as_bytes(std::span(halves)), DType::kFloat16), 2);
  halves = {0x7F7F, 0x7C01, 0xFF80};
  EXPECT_EQ(FirstNonFinite(std::as_bytes(std::span(halves)), DType::kBFloat16), 2);
}

}  // namespace
}  // namespace eta
