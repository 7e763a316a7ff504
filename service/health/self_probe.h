// Asks this server's own health service, each time over a new connection: what a load balancer's
// probe would see. A listener that no longer accepts looks sound from inside and to a mere
// connect(), since the kernel's backlog still takes connections.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "engine/base/threads/loop_thread.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"
#include "service/log/log.h"

namespace eta {

class SelfProbe {
 public:
  // Of the server at `address`, which listens. It counts as deaf once no call was answered for
  // `patience` and three in a row failed, so that a process that was stopped meanwhile does not.
  // `refused` counts the connections that the server closed because it holds as many as it may: a
  // probe that fails while it rises tells nothing, since whoever refuses is not deaf.
  SelfProbe(std::string address, std::shared_ptr<grpc::ChannelCredentials> credentials,
            std::chrono::milliseconds patience, std::function<int64_t()> refused, Log& log);
  ~SelfProbe();
  SelfProbe(const SelfProbe&) = delete;
  SelfProbe& operator=(const SelfProbe&) = delete;

  // Any thread.
  bool Deaf() const;

 private:
  // What the thread does each period.
  void Probe();
  // Empty: answered; else why not.
  std::string Ask();

  const std::string address_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const std::chrono::milliseconds patience_;
  const std::function<int64_t()> refused_;
  Log& log_;

  bool sound_ = true;  // of the thread: the last probe was answered

  mutable Mutex mutex_;
  Clock::time_point answered_ GUARDED_BY(mutex_) = Clock::now();
  int failures_ GUARDED_BY(mutex_) = 0;  // since then
  grpc::ClientContext* asking_ GUARDED_BY(mutex_) = nullptr;
  bool stop_ GUARDED_BY(mutex_) = false;

  LoopThread thread_;  // last: it uses the others
};

}  // namespace eta
