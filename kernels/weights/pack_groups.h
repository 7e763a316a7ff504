// Floats as blocks of 32 integers: what a folder of 16 bits becomes at load, and what GGUF files
// are written with.
#pragma once

#include <cstddef>
#include <span>

namespace eta {

// Numbers of no greater magnitude always fit: scales and minimums are float16.
inline constexpr float kMostQ8_0 = 127.0f * 65504.0f;
inline constexpr float kMostQ4_1 = 65504.0f;

// Packs 1 to 32 numbers into one block. What stands for the rest is finite. False: a number is not
// finite, or a scale or minimum is beyond float16. Then the block's scale is NaN, and so is every
// product with it.
//
// Q8_0 as ggml's own conversion makes it: the scale is the greatest magnitude over 127, as float16,
// and each number is divided by that scale before the scale is rounded; half-way cases away from
// zero.
bool PackQ8_0(std::span<const float> values, std::byte* block);
// Q4_1: of a few scales with their best minimums the pair, as float16, with the least squared
// error; each number goes to the nearest level. One exception: a model that was trained on from 4
// bits has its numbers near their old levels, and nearest levels would take back what it learnt. If
// the root of the mean square error is over 1/32 and below 1/6 of a step, on at least 6 levels,
// numbers are dithered: up or down with the odds of their distances, by thresholds that depend on
// the block's numbers alone.
bool PackQ4_1(std::span<const float> values, std::byte* block);

}  // namespace eta
