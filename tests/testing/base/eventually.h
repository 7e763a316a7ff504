// Waits for something that happens on another thread or in another process.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace eta {

// Waits up to 20 s for the condition. Returns whether it came true.
inline bool Eventually(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace eta
