// The one bookkeeper of an engine's queue: which requests wait for their first step, of which
// tenants, and who is refused when they are too many.
//
// A request is entered before its sequence is made. It leaves when it starts or ends. Requests that
// ran and were preempted are not counted.
//
// Limits. At most max_requests wait, and their prompts have at most max_tokens together; a request
// that waits alone may have more.
// Fairness. A newcomer that would pass a limit is refused, unless another tenant has more in the
// queue for its weight than the newcomer's tenant would have. Then the newest request of the tenant
// that has most is displaced, and so on until the newcomer fits.
// A displaced request counts no more at once, but it holds memory until it has left. So displaced
// requests that have not left are held to the same two limits; past them the newcomer is refused.
//
// Not thread-safe: SubmissionQueue guards it. Functions that throw std::bad_alloc change nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/batching/fairness/tenant_queue.h"
#include "engine/request/request.h"

namespace eta {

class QueueLedger {
 public:
  enum class Limit { kRequests, kTokens };
  struct Victim {
    uint64_t handle;
    Limit limit;  // the one that made it go
  };
  // What a newcomer meets.
  struct Room {
    std::optional<Limit> refused_by;  // unset: it fits
    std::vector<Victim> displaced;    // those that go for it; none if it is refused
  };

  QueueLedger(int64_t max_requests, int64_t max_tokens)
      : max_requests_(max_requests), max_tokens_(max_tokens) {}

  // Whether `request`, of so many prompt tokens, fits. Changes nothing.
  Room FindRoom(const Request& request, int64_t tokens) const;
  // Enters it if it fits, and displaces whom it displaces. Handles only grow.
  Room Enter(uint64_t handle, const Request& request, int64_t tokens);
  // It has started or ended. A handle that is not here is ignored.
  void Leave(uint64_t handle);
  void Clear();

  // The limit for which it was displaced; unset: it was not.
  std::optional<Limit> DisplacedBy(uint64_t handle) const;

  int64_t requests() const { return requests_; }
  int64_t tokens() const { return tokens_; }
  // Nobody waits, and nobody displaced is still to leave.
  bool empty() const { return requests_ == 0 && displaced_.empty(); }
  // Adds what waits to `tenants`.
  void AddTo(std::vector<TenantQueue>& tenants) const;

 private:
  struct Item {
    uint64_t handle;
    int64_t tokens;
  };
  struct Line {
    double weight;            // that of the tenant's newest request
    int64_t tokens;           // of `items` together
    std::vector<Item> items;  // ascending by handle, never empty
  };
  struct Displaced {
    Item item;
    Limit limit;
  };
  struct Load;

  std::optional<Limit> Passed(int64_t requests, int64_t tokens) const;
  std::vector<Load> Loads(const Request& request) const;

  const int64_t max_requests_;
  const int64_t max_tokens_;
  std::map<std::string, Line> lines_;  // by tenant
  int64_t requests_ = 0;               // in lines_
  int64_t tokens_ = 0;                 // likewise
  std::vector<Displaced> displaced_;   // those that have not left
  int64_t displaced_tokens_ = 0;
};

}  // namespace eta
