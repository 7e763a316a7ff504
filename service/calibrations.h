// Which calibrations run: bounded in number, and each request id at most once at a time.
// Thread-safe; must outlive what it gave out.
#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "calibration/tenant.h"

namespace eta {

class Calibrations {
 public:
  // Something taken, given back when it is destroyed.
  class Hold {
   public:
    Hold() = default;
    explicit Hold(std::function<void()> give_back) : give_back_(std::move(give_back)) {}
    Hold(Hold&& other) noexcept : give_back_(std::exchange(other.give_back_, nullptr)) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(give_back_, other.give_back_);
      return *this;
    }
    ~Hold() { GiveBack(); }

    void GiveBack() {
      if (const auto give_back = std::exchange(give_back_, nullptr)) give_back();
    }

   private:
    std::function<void()> give_back_;
  };

  explicit Calibrations(int max_running) : max_running_(max_running) {}

  // A request id for as long as its call runs; ABORTED (REQUEST_IN_PROGRESS). Nothing for an empty
  // one.
  absl::StatusOr<Hold> Claim(const Tenant& tenant, const std::string& request_id);

  // A place among those that run; RESOURCE_EXHAUSTED (CALIBRATION_BUSY).
  absl::StatusOr<Hold> Enter();

 private:
  const int max_running_;
  std::mutex mutex_;
  std::set<std::pair<Tenant, std::string>> claimed_;  // guarded by mutex_
  int running_ = 0;                                   // likewise
};

}  // namespace eta
