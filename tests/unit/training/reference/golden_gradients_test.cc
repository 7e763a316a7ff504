// Every backend's gated attention against gradients that an independent program made in float64.

#include <cmath>
#include <memory>
#include <string>

#include "calibration/evaluation/cases/case_tensors.h"
#include "gtest/gtest.h"
#include "tests/testing/golden/golden_folder.h"
#include "tests/testing/training/attention_case.h"
#include "training/cpu/cpu_backend.h"
#include "training/reference/reference_backend.h"

namespace eta::training {
namespace {

using testing::AttentionCase;

std::string Folder() {
  return eta::testing::GoldenFolder("gradients", "ETA_GOLDEN_GRADIENTS_DIR");
}

// A tensor [heads, T, width] of the file as [T, heads * width].
std::vector<double> Read(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo& info = file.tensors().at(name);
  const auto bytes = file.Read(name);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  std::vector<double> values;
  const auto count = static_cast<int64_t>(bytes->size() / SizeOf(info.dtype));
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(info.dtype == DType::kFloat64
                         ? reinterpret_cast<const double*>(bytes->data())[i]
                         : LoadElement(info.dtype, bytes->data(), i));
  }
  if (name.find("gate_sum") != std::string::npos) return values;  // [HQ, T], as the op has it
  const int64_t heads = info.shape[0];
  const int64_t length = info.shape[1];
  const int64_t width = info.shape.size() > 2 ? info.shape[2] : 1;
  std::vector<double> turned(values.size());
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < width; ++i) {
        turned[static_cast<size_t>((t * heads + h) * width + i)] =
            values[static_cast<size_t>((h * length + t) * width + i)];
      }
    }
  }
  return turned;
}

AttentionCase ReadCase(const SafetensorsFile& file) {
  const std::vector<int64_t>& q = file.tensors().at("q").shape;
  AttentionCase c;
  c.shape.sequences = 1;
  c.shape.length = static_cast<int32_t>(q[1]);
  c.shape.num_query_heads = static_cast<int32_t>(q[0]);
  c.shape.num_kv_heads = static_cast<int32_t>(file.tensors().at("k").shape[0]);
  c.shape.head_dim = static_cast<int32_t>(q[2]);
  c.shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(q[2])));
  c.gate.kind = GateKind::kSilu;
  c.gate.beta = std::stof(file.metadata().at("beta"));
  c.q = Read(file, "q");
  c.k = Read(file, "k");
  c.v = Read(file, "v");
  c.tau = Read(file, "tau");
  c.grad_out = Read(file, "grad_out");
  c.grad_gate_sum = Read(file, "grad_gate_sum");
  return c;
}

void ExpectGolden(TrainingBackend& backend, double tolerance) {
  const std::vector<std::string> names = eta::testing::GoldenCases(Folder());
  ASSERT_GE(names.size(), 3u);
  for (const std::string& name : names) {
    const auto file = OpenCase(Folder() + "/" + name + ".safetensors").value();
    testing::Harness harness(backend);
    for (const testing::Result& result : RunAttention(ReadCase(file), harness)) {
      if (result.name == "lse" || result.name == "block_sum") continue;
      EXPECT_LE(testing::RelativeError(result.values, Read(file, result.name)), tolerance)
          << name << ": " << result.name;
    }
  }
}

TEST(GoldenGradients, OfTheReference) {
  ExpectGolden(*reference::MakeBackend(), 1e-6);
  ExpectGolden(*reference::MakeBackend(DType::kFloat64), 2e-7);
}

TEST(GoldenGradients, OfTheCpu) {
  ExpectGolden(*cpu::MakeBackend(2), 1e-5);
}

}  // namespace
}  // namespace eta::training
