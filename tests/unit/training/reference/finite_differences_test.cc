// The gradients of the reference's attention and of Native Sparse Attention's ops against finite
// differences of their forward passes.

#include <cmath>
#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/training/attention_case.h"
#include "tests/testing/training/native_sparse_case.h"
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

// A loss of one input.
using LossOf = std::function<double(const std::vector<double>& input)>;

// Along `direction`, by four points: the error is of the fourth power of the step.
double Slope(const std::vector<double>& input, const std::vector<double>& direction, double step,
             const LossOf& loss) {
  const auto at = [&](double steps) {
    std::vector<double> moved = input;
    for (size_t i = 0; i < direction.size(); ++i) moved[i] += steps * step * direction[i];
    return loss(moved);
  };
  return (8.0 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12.0 * step);
}

double Length(const std::vector<double>& x) {
  return std::sqrt(Dot(x, x));
}

// Directions of a few elements each, so that errors of single ones show.
void ExpectSlopes(const std::vector<double>& input, const std::vector<double>& gradient,
                  const std::string& name, const Precision& precision, const LossOf& loss) {
  const size_t count = gradient.size();
  ASSERT_EQ(count, input.size()) << name;
  const double typical = Length(gradient) / std::sqrt(static_cast<double>(count));
  testing::Numbers numbers(count);
  for (int trial = 0; trial < 12; ++trial) {
    std::vector<double> direction(count, 0.0);
    for (int i = 0; i < 3; ++i) {
      const auto at = static_cast<size_t>(numbers.Integer(0, static_cast<int32_t>(count) - 1));
      direction[at] = numbers.Integer(0, 1) == 1 ? 1.0 : -1.0;
    }
    const double expected = Slope(input, direction, precision.step, loss);
    EXPECT_NEAR(Dot(gradient, direction), expected,
                precision.tolerance * (typical + std::abs(expected)))
        << name << ", trial " << trial;
  }
}

void ExpectGradient(const AttentionCase& c, std::vector<double> AttentionCase::*input,
                    const std::vector<double>& gradient, const std::string& name,
                    TrainingBackend& backend, const Precision& precision) {
  ExpectSlopes(c.*input, gradient, c.Describe() + ": " + name, precision,
               [&](const std::vector<double>& values) {
                 AttentionCase moved = c;
                 moved.*input = values;
                 return Loss(moved, backend);
               });
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

TEST(FiniteDifferences, OfChosenKeys) {
  for (const int32_t window : {0, 2, 9, 66}) {
    for (const bool chosen : {false, true}) {
      AttentionCase c = Case(4, GateKind::kNone, 0.0f, false);
      testing::Numbers numbers(5);
      if (chosen) c.blocks = testing::RandomBlocks(numbers, c.shape);
      c.window = window;
      ExpectGradients(c, {1.0 / 1024, 1e-5});
    }
  }
}

constexpr Precision kFine = {1.0 / 1024, 1e-6};

TEST(FiniteDifferences, OfCompressedAttention) {
  const auto backend = reference::MakeBackend(DType::kFloat64);
  testing::Numbers numbers(6);
  const testing::CompressedCase c = testing::MakeCompressedCase(numbers, {2, 107, 4, 2, 6});
  Harness once(*backend);
  const Results gradients = RunCompressedAttention(c, once);
  const auto expect = [&](std::vector<double> testing::CompressedCase::*input,
                          const std::string& name) {
    ExpectSlopes(c.*input, Named(gradients, name), name, kFine,
                 [&](const std::vector<double>& values) {
                   testing::CompressedCase moved = c;
                   moved.*input = values;
                   Harness harness(*backend);
                   const Results results = RunCompressedAttention(moved, harness, false);
                   return Dot(Named(results, "out"), c.grad_out);
                 });
  };
  expect(&testing::CompressedCase::q, "dq");
  expect(&testing::CompressedCase::k, "dk");
  expect(&testing::CompressedCase::v, "dv");
}

TEST(FiniteDifferences, OfGatheredWindows) {
  const auto backend = reference::MakeBackend(DType::kFloat64);
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const testing::WindowsCase c = testing::RandomWindowsCase(seed, {3}, 90);
    Harness once(*backend);
    ExpectSlopes(c.x, Named(RunGatherWindows(c, once), "dx"), "seed " + std::to_string(seed), kFine,
                 [&](const std::vector<double>& values) {
                   testing::WindowsCase moved = c;
                   moved.x = values;
                   Harness harness(*backend);
                   const Results results = RunGatherWindows(moved, harness, false);
                   return Dot(Named(results, "out"), c.grad_out);
                 });
  }
}

TEST(FiniteDifferences, OfMixedBranches) {
  const auto backend = reference::MakeBackend(DType::kFloat64);
  const testing::BranchesCase c = testing::RandomBranchesCase(7, {5}, 20);
  Harness once(*backend);
  const Results gradients = RunMixBranches(c, once);
  const auto expect = [&](const std::string& name,
                          const std::function<std::vector<double>&(testing::BranchesCase&)>& of) {
    testing::BranchesCase moved = c;
    const std::vector<double> input = of(moved);
    for (const std::string where : {"", " in place"}) {
      ExpectSlopes(input, Named(gradients, name + where), name + where, kFine,
                   [&](const std::vector<double>& values) {
                     of(moved) = values;
                     Harness harness(*backend);
                     const Results results = RunMixBranches(moved, harness, false);
                     of(moved) = input;
                     return Dot(Named(results, "out"), c.grad_out);
                   });
    }
  };
  expect("dgates", [](testing::BranchesCase& b) -> std::vector<double>& { return b.gates; });
  for (size_t i = 0; i < kBranches; ++i) {
    expect("dbranch " + std::to_string(i),
           [i](testing::BranchesCase& b) -> std::vector<double>& { return b.branches[i]; });
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
