// What is borrowed is given back exactly once.
#include "engine/base/lease.h"

#include <utility>

#include "gtest/gtest.h"

namespace eta {
namespace {

class LeaseTest : public ::testing::Test {
 protected:
  Lease Borrow(int& returned) {
    return Lease([&returned] { ++returned; });
  }
  int first_ = 0, second_ = 0;
};

TEST_F(LeaseTest, IsGivenBackAtTheEndOfItsLife) {
  {
    const Lease lease = Borrow(first_);
    EXPECT_EQ(first_, 0);
  }
  EXPECT_EQ(first_, 1);
}

TEST_F(LeaseTest, ReleasedEarlyItIsNotGivenBackAgain) {
  {
    Lease lease = Borrow(first_);
    lease.Release();
    EXPECT_EQ(first_, 1);
    lease.Release();
  }
  EXPECT_EQ(first_, 1);
}

TEST_F(LeaseTest, MovesWithoutBeingGivenBack) {
  {
    Lease from = Borrow(first_);
    const Lease to = std::move(from);
    from.Release();
    EXPECT_EQ(first_, 0);
  }
  EXPECT_EQ(first_, 1);
}

TEST_F(LeaseTest, WhatAnotherReplacesIsGivenBack) {
  Lease lease = Borrow(first_);
  lease = Borrow(second_);
  EXPECT_EQ(first_, 1);
  EXPECT_EQ(second_, 0);
  lease = Lease();
  EXPECT_EQ(second_, 1);
}

}  // namespace
}  // namespace eta
