// e4m3 over all of its codes, the scales of rows, and the promise of an 8-bit record: its bound is
// never below the float16 record's.

#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/dtype.h"
#include "tests/testing/base/special_floats.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

constexpr int kLargestCode = 0x7E;

float Value(int code) {
  return E4M3ToFloat(static_cast<uint8_t>(code));
}

TEST(E4M3, CodesAscendInStepsOfAnEighthOfThePowerOfTwo) {
  EXPECT_EQ(Value(0), 0.0f);
  EXPECT_EQ(Value(kLargestCode), kMaxE4M3);
  for (int code = 0; code < kLargestCode; ++code) {
    const int exponent = std::max(code >> 3, 1) - 10;
    EXPECT_EQ(Value(code + 1) - Value(code), std::ldexp(1.0f, exponent)) << code;
    EXPECT_EQ(Value(code | 0x80), -Value(code)) << code;
  }
}

TEST(E4M3, EveryCodeReadsBackAsItself) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(Value(code)));
      EXPECT_EQ(FloatToE4M3(Value(code)) & 0x7F, 0x7F);
    } else {
      EXPECT_EQ(FloatToE4M3(Value(code)), code);
    }
  }
}

TEST(E4M3, RoundsToNearestTiesToEven) {
  for (int code = 0; code < kLargestCode; ++code) {
    const float middle = 0.5f * (Value(code) + Value(code + 1));
    const float below = std::nextafter(middle, 0.0f);
    const float above = std::nextafter(middle, kInfinity);
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(FloatToE4M3(middle), even) << code;
    EXPECT_EQ(FloatToE4M3(below), code) << code;
    EXPECT_EQ(FloatToE4M3(above), code + 1) << code;
    EXPECT_EQ(FloatToE4M3(-middle), even | 0x80) << code;
    EXPECT_EQ(FloatToE4M3(-below), code | 0x80) << code;
    EXPECT_EQ(FloatToE4M3(-above), (code + 1) | 0x80) << code;
  }
}

TEST(E4M3, RoundsUpToTheLeastThatIsNotBelow) {
  for (int code = 0; code <= kLargestCode; ++code) {
    EXPECT_EQ(FloatToE4M3Up(Value(code)), code);
    if (code == kLargestCode) break;
    EXPECT_EQ(FloatToE4M3Up(std::nextafter(Value(code), kInfinity)), code + 1) << code;
    EXPECT_EQ(FloatToE4M3Up(0.5f * (Value(code) + Value(code + 1))), code + 1) << code;
    EXPECT_EQ(FloatToE4M3Up(std::nextafter(Value(code + 1), 0.0f)), code + 1) << code;
  }
}

TEST(E4M3, SaturatesAndKeepsNaN) {
  for (const float large : {449.0f, 464.0f, 480.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(FloatToE4M3(large), kLargestCode);
    EXPECT_EQ(FloatToE4M3(-large), kLargestCode | 0x80);
  }
  EXPECT_EQ(FloatToE4M3(kNaN) & 0x7F, 0x7F);
  EXPECT_EQ(FloatToE4M3Up(kNaN) & 0x7F, 0x7F);
}

TEST(Scales, TheExponentIsTheLeastThatFits) {
  for (int exponent = kMinScaleExponent; exponent < kMaxScaleExponent; ++exponent) {
    const float most = std::ldexp(kMaxE4M3, exponent);
    EXPECT_EQ(ScaleExponent(most), exponent);
    EXPECT_EQ(ScaleExponent(std::nextafter(most, kInfinity)), exponent + 1);
  }
  for (const float small : {0.0f, 1e-45f, std::ldexp(kMaxE4M3, kMinScaleExponent - 1)}) {
    EXPECT_EQ(ScaleExponent(small), kMinScaleExponent);
  }
  for (const float large : {std::numeric_limits<float>::max(), kInfinity, kNaN}) {
    EXPECT_EQ(ScaleExponent(large), kMaxScaleExponent);
  }
}

std::vector<float> StoredRow(const std::vector<float>& row) {
  std::vector<uint8_t> codes(row.size());
  const int32_t exponent = QuantizeRow(row, codes);
  std::vector<float> stored;
  for (const uint8_t code : codes) stored.push_back(std::ldexp(E4M3ToFloat(code), exponent));
  return stored;
}

TEST(Scales, ARowKeepsTheNearestOfAllCodesAndStaysWhenStoredAgain) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> row = Normal(random, 1, 96).data;
    const auto shift = static_cast<int>(Uniform(random, -90, 90));
    for (float& x : row) {
      // In every second row, elements of very different sizes.
      const auto spread = static_cast<int>(round % 2 == 0 ? 0 : Uniform(random, -24, 0));
      x = std::ldexp(x, shift + spread);
    }
    std::vector<uint8_t> codes(row.size());
    const int32_t exponent = QuantizeRow(row, codes);
    float largest = 0.0f;
    for (const float x : row) largest = std::max(largest, std::abs(x));
    EXPECT_EQ(exponent, ScaleExponent(largest));
    const std::vector<float> stored = StoredRow(row);
    for (size_t i = 0; i < row.size(); ++i) {
      float nearest = kInfinity;
      for (int code = 0; code < 256; ++code) {
        const float distance = std::abs(std::ldexp(Value(code), exponent) - row[i]);
        if (distance < nearest) nearest = distance;
      }
      EXPECT_EQ(std::abs(stored[i] - row[i]), nearest) << "round " << round << ", element " << i;
    }
    EXPECT_EQ(StoredRow(stored), stored);
  }
}

TEST(Scales, ARowOfZerosIsZero) {
  EXPECT_EQ(StoredRow(std::vector<float>(64)), std::vector<float>(64));
}

TEST(Scales, ANaNStaysInItsRow) {
  std::vector<float> row(64, 1.0f);
  row[5] = kNaN;
  EXPECT_TRUE(std::isnan(StoredRow(row)[5]));
}

TEST(Scales, AnInfinityIsNotTurnedIntoANumber) {
  std::vector<float> row(64, 1.0f);
  row[5] = -kInfinity;
  EXPECT_EQ(StoredRow(row)[5], -kInfinity);
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// A float16 record's vectors: of one size, of very different sizes, or with many zeros.
std::vector<float> RecordVector(Random& random, size_t d, bool positive) {
  std::vector<float> out = Normal(random, 1, static_cast<int64_t>(d)).data;
  const int64_t kind = Uniform(random, 0, 3);
  const auto shift = static_cast<int>(Uniform(random, -12, 8));
  for (float& x : out) {
    if (kind == 1) x = std::ldexp(x, static_cast<int>(Uniform(random, -12, 6)));
    if (kind == 2 && Uniform(random, 0, 2) > 0) x = 0.0f;
    if (kind == 3) x = 0.0f;
    x = RoundTo(DType::kFloat16, std::ldexp(positive ? std::abs(x) : x, shift));
  }
  return out;
}

// One record in both forms, and its bound along any query, the ceiling |q| M left out.
struct BothRecords {
  std::vector<float> mu, sigma;    // float16
  std::vector<float> mu8, sigma8;  // as read back
  RecordScales scales;

  BothRecords(const std::vector<float>& mean, const std::vector<float>& deviation)
      : mu(mean), sigma(deviation) {
    std::vector<int8_t> mu_codes(mu.size());
    std::vector<uint8_t> sigma_codes(mu.size());
    scales = QuantizeRecord(mu, sigma, mu_codes, sigma_codes);
    for (size_t i = 0; i < mu.size(); ++i) {
      mu8.push_back(scales.mu_scale * static_cast<float>(mu_codes[i]));
      sigma8.push_back(std::ldexp(E4M3ToFloat(sigma_codes[i]), scales.sigma_exponent));
    }
  }

  static double Deviation(const std::vector<float>& q, const std::vector<float>& sigma) {
    double sum = 0.0;
    for (size_t i = 0; i < q.size(); ++i) {
      sum += std::pow(static_cast<double>(q[i]) * sigma[i], 2);
    }
    return std::sqrt(sum);
  }
  double Bound16(const std::vector<float>& q, double z) const {
    return Dot(q, mu) + z * Deviation(q, sigma);
  }
  double Bound8(const std::vector<float>& q, double z) const {
    return Dot(q, mu8) + std::sqrt(Dot(q, q)) * scales.mu_error + z * Deviation(q, sigma8);
  }
};

TEST(QuantizeRecord, ItsBoundIsNeverBelowTheFloat16Records) {
  Random random(4);
  for (int round = 0; round < 2000; ++round) {
    const size_t d = round % 2 == 0 ? 64 : 128;
    const BothRecords record(RecordVector(random, d, false), RecordVector(random, d, true));
    const double z = UniformReal(random, 0.0, 8.0);
    std::vector<std::vector<float>> queries = {RecordVector(random, d, false)};
    std::vector<float> lost(d);  // the query that feels the rounding of mu most
    for (size_t i = 0; i < d; ++i) lost[i] = record.mu[i] - record.mu8[i];
    queries.push_back(lost);
    for (const std::vector<float>& q : queries) {
      // What float32 rounding of p * mu8 and of e may take.
      const double rounding =
          1e-6 * std::sqrt(Dot(q, q)) * (std::sqrt(Dot(record.mu, record.mu)) + 1e-30);
      EXPECT_GE(record.Bound8(q, z), record.Bound16(q, z) - rounding) << "round " << round;
    }
  }
}

TEST(QuantizeRecord, RoundsMeansToNearestAndDeviationsUp) {
  Random random(5);
  for (int round = 0; round < 500; ++round) {
    const BothRecords record(RecordVector(random, 64, false), RecordVector(random, 64, true));
    double square = 0.0;
    for (size_t i = 0; i < 64; ++i) {
      const double lost = static_cast<double>(record.mu[i]) - record.mu8[i];
      square += lost * lost;
      EXPECT_LE(std::abs(lost), 0.5001 * record.scales.mu_scale);
      EXPECT_GE(record.sigma8[i], record.sigma[i]);
      const float step = std::ldexp(1.0f, record.scales.sigma_exponent - 9);
      EXPECT_LE(record.sigma8[i], std::max(1.125f * record.sigma[i], record.sigma[i] + step));
    }
    EXPECT_NEAR(record.scales.mu_error, std::sqrt(square), 1e-5 * std::sqrt(square) + 1e-30);
  }
}

TEST(QuantizeRecord, ZerosStayZerosAndInfinityDoesNoHarm) {
  const std::vector<float> zeros(64);
  const BothRecords nothing(zeros, zeros);
  EXPECT_EQ(nothing.mu8, zeros);
  EXPECT_EQ(nothing.sigma8, zeros);
  EXPECT_EQ(nothing.scales.mu_error, 0.0f);

  std::vector<float> infinite(64, 1.0f);
  infinite[3] = kInfinity;
  const BothRecords record(infinite, infinite);
  EXPECT_FALSE(std::isfinite(record.scales.mu_error));
  EXPECT_EQ(record.scales.sigma_exponent, kMaxScaleExponent);
}

}  // namespace
}  // namespace eta::testing
