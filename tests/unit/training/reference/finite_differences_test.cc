// The gradients of the reference's attention against finite differences of its forward pass.

#include <cmath>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/training/attention_case.h"
#include "training/reference/reference_backend.h"

namespace eta::training {
namespace {

using testing::AttentionCase;
using testing::Harness;
using testing::Results;

const std::vector<double>& Named(const Results& results, const std::string& name) {
  static const std::vector<double> none;
  for (const testing::Result& result : results) {
    if (result.name == name) return result.values;
  }
  return none;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// A loss whose gradients are the case's.
double Loss(const AttentionCase& c, TrainingBackend& backend) {
  Harness harness(backend);
  const Results results = RunAttention(c, harness, false);
  return Dot(Named(results, "out"), c.grad_out) + Dot(Named(results, "gate_sum"), c.grad_gate_sum) +
         Dot(Named(results, "block_sum"), c.grad_block_sum);
}

// How far points are from one another, and what a difference may be off by.
struct Precision {
  double step;
  double tolerance;
};

// Along `direction`, by four points: the error is of the fourth power of the step.
double Slope(const AttentionCase& c, std::vector<double> AttentionCase::*input,
             const std::vector<double>& direction, double step, TrainingBackend& backend) {
  const auto at = [&](double steps) {
    AttentionCase moved = c;
    for (size_t i = 0; i < direction.size(); ++i) {
      (moved.*input)[i] += steps * step * direction[i];
    }
    return Loss(moved, backend);
  };
  return (8.0 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12.0 * step);
}

double Length(const std::vector<double>& x) {
  return std::sqrt(Dot(x, x));
}

// Directions of a few elements each, so that errors of single ones show.
void ExpectGradient(const AttentionCase& c, std::vector<double> AttentionCase::*input,
                    const std::vector<double>& gradient, const std::string& name,
                    TrainingBackend& backend, const Precision& precision) {
  const size_t count = gradient.size();
  ASSERT_EQ(count, (c.*input).size());
  const double typical = Length(gradient) / std::sqrt(static_cast<double>(count));
  testing::Numbers numbers(count);
  for (int trial = 0; trial < 12; ++trial) {
    std::vector<double> direction(count, 0.0);
    for (int i = 0; i < 3; ++i) {
      const auto at = static_cast<size_t>(numbers.Integer(0, static_cast<int32_t>(count) - 1));
      direction[at] = numbers.Integer(0, 1) == 1 ? 1.0 : -1.0;
    }
    const double expected = Slope(c, input, direction, precision.step, backend);
    EXPECT_NEAR(Dot(gradient, direction), expected,
                precision.tolerance * (typical + std::abs(expected)))
        << c.Describe() << ": " << name << ", trial " << trial;
  }
}

void ExpectGradients(const AttentionCase& c, const Precision& precision) {
  const auto backend = reference::MakeBackend(DType::kFloat64);
  Harness harness(*backend);
  const Results results = RunAttention(c, harness);
  ExpectGradient(c, &AttentionCase::q, Named(results, "dq"), "dq", *backend, precision);
  ExpectGradient(c, &AttentionCase::k, Named(results, "dk"), "dk", *backend, precision);
  ExpectGradient(c, &AttentionCase::v, Named(results, "dv"), "dv", *backend, precision);
  if (c.gate.kind == GateKind::kNone) return;
  ExpectGradient(c, &AttentionCase::tau, Named(results, "dtau"), "dtau", *backend, precision);
}

AttentionCase Case(uint64_t seed, GateKind kind, float strength, bool group_blocks) {
  testing::Numbers numbers(seed);
  AttentionCase c;
  c.shape = {2, 70, 4, 2, 6, 0.4f};
  c.gate = {kind, 2.5f, strength, group_blocks};
  const int64_t rows = c.shape.rows();
  c.q = numbers.Normal(rows * 24);
  c.k = numbers.Normal(rows * 12);
  c.v = numbers.Normal(rows * 12);
  c.grad_out = numbers.Normal(rows * 24);
  if (kind == GateKind::kNone) return c;
  c.tau = numbers.Normal(rows * 4, 0.7);
  // Thresholds are float32, so that steps from these are exact.
  for (double& tau : c.tau) tau = std::round(tau * 4096) / 4096;
  return c;
}

TEST(FiniteDifferences, OfTheOutput) {
  for (const GateKind kind : {GateKind::kNone, GateKind::kSilu, GateKind::kAdditive}) {
    for (const float strength : {0.0f, 0.3f, 1.0f}) {
      AttentionCase c = Case(1, kind, strength, false);
      if (kind == GateKind::kAdditive) {
        // Gates that are nearly open: elsewhere 100 (m - 1) leaves nothing to differentiate.
        for (double& tau : c.tau) tau -= 3.0;
      }
      ExpectGradients(c, {1.0 / 1024, kind == GateKind::kAdditive ? 1e-3 : 1e-5});
    }
  }
}

// The row sums come out as float32, which is what limits the differences here.
TEST(FiniteDifferences, OfTheRowSums) {
  for (const bool group_blocks : {false, true}) {
    AttentionCase c = Case(2, GateKind::kSilu, 0.7f, group_blocks);
    testing::Numbers numbers(3);
    c.grad_out.assign(c.grad_out.size(), 0.0);
    c.grad_gate_sum = numbers.Normal(c.shape.rows() * 4);
    c.grad_block_sum = numbers.Normal(c.shape.rows() * c.gate.block_heads(c.shape), 10.0);
    // No step changes which gate of a block is the largest.
    ClearNearTies(c, DType::kFloat64, 0.05);
    ExpectGradients(c, {1.0 / 256, 5e-3});
  }
}

}  // namespace
}  // namespace eta::training
