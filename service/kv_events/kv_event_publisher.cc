// lint: untrusted-input
#include "service/kv_events/kv_event_publisher.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <zmq.h>

#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "service/kv_events/kv_event_encoding.h"

namespace eta {
namespace {

constexpr int kPublishAtOnce = 64;       // batches, before replays have their turn
constexpr int64_t kMaxFrameBytes = 256;  // of what readers send: longer ends their connection
constexpr int kHeartbeatMs = 30'000;     // finds readers that are gone
constexpr uint64_t kEndOfReplay = ~uint64_t{0};

std::array<char, 8> MostSignificantFirst(uint64_t number) {
  std::array<char, 8> bytes;
  for (size_t i = bytes.size(); i-- > 0; number >>= 8) bytes[i] = static_cast<char>(number & 0xff);
  return bytes;
}

uint64_t ReadNumber(std::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

std::string_view View(const std::array<char, 8>& bytes) {
  return {bytes.data(), bytes.size()};
}

// Readers count from 0, and the log from 1. The snapshot of a log without batches has number 0.
uint64_t Published(const KvEventBatch& batch) {
  return batch.sequence == 0 ? 0 : batch.sequence - 1;
}

// ZeroMQ binds to addresses and to names of interfaces.
std::string Bindable(const std::string& address) {
  constexpr std::string_view kLocal = "tcp://localhost:";
  if (!address.starts_with(kLocal)) return address;
  return absl::StrCat("tcp://127.0.0.1:", address.substr(kLocal.size()));
}

// The frames of the message that waits, none if it has others than a request has.
std::vector<std::string> Receive(void* socket) {
  std::vector<std::string> frames;
  bool fits = true;
  int more = 1;
  while (more != 0) {
    std::array<char, kMaxFrameBytes> frame;
    const int size = zmq_recv(socket, frame.data(), frame.size(), ZMQ_DONTWAIT);
    size_t length = sizeof(more);
    if (size < 0 || zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &length) != 0) return {};
    fits = fits && frames.size() < 3 && static_cast<size_t>(size) <= frame.size();
    if (fits) frames.emplace_back(frame.data(), static_cast<size_t>(size));
  }
  return fits ? frames : std::vector<std::string>();
}

}  // namespace

void KvEventPublisher::EndContext::operator()(void* context) const {
  zmq_ctx_term(context);
}
void KvEventPublisher::CloseSocket::operator()(void* socket) const {
  zmq_close(socket);
}

absl::StatusOr<std::unique_ptr<KvEventPublisher>> KvEventPublisher::Start(
    const KvEventOptions& options, KvEventFeed& feed,
    std::function<void(const absl::Status&)> on_trouble) {
  std::unique_ptr<KvEventPublisher> publisher(
      new KvEventPublisher(options, feed, std::move(on_trouble)));
  RETURN_IF_ERROR(publisher->Open());
  publisher->thread_ = std::thread([self = publisher.get()] { self->Run(); });
  pthread_setname_np(publisher->thread_.native_handle(), "kv_publisher");
  return publisher;
}

KvEventPublisher::~KvEventPublisher() {
  if (!thread_.joinable()) return;
  stop_ = true;
  eventfd_write(wake_->get(), 1);
  thread_.join();
}

absl::Status KvEventPublisher::Open() {
  context_.reset(zmq_ctx_new());
  wake_ = std::make_shared<const Descriptor>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (context_ == nullptr || !wake_->valid()) {
    return absl::UnavailableError("--kv_events: this process has no file descriptors left");
  }
  ASSIGN_OR_RETURN(publish_, Bind(ZMQ_PUB, "--kv_events", options_.publish, address_));
  if (!options_.replay.empty()) {
    ASSIGN_OR_RETURN(replay_,
                     Bind(ZMQ_ROUTER, "--kv_events_replay", options_.replay, replay_address_));
  }
  return Subscribe(1);
}

absl::StatusOr<KvEventPublisher::Socket> KvEventPublisher::Bind(int type, const std::string& flag,
                                                                const std::string& address,
                                                                std::string& bound) const {
  Socket socket(zmq_socket(context_.get(), type));
  const std::string bindable = Bindable(address);
  bool fit = socket != nullptr;
  const auto set = [&](int option, int value) {
    fit = fit && zmq_setsockopt(socket.get(), option, &value, sizeof(value)) == 0;
  };
  set(ZMQ_LINGER, 0);
  set(ZMQ_SNDHWM, kMaxUnsent);
  set(ZMQ_HEARTBEAT_IVL, kHeartbeatMs);
  set(ZMQ_IPV6, bindable.find('[') != std::string::npos ? 1 : 0);
  fit = fit &&
        zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &kMaxFrameBytes, sizeof(kMaxFrameBytes)) == 0;
  if (!fit || zmq_bind(socket.get(), bindable.c_str()) != 0) {
    return absl::UnavailableError(
        absl::StrCat(flag, ": cannot listen on ", address, ": ", zmq_strerror(zmq_errno())));
  }
  std::array<char, kMaxFrameBytes> endpoint{};
  size_t length = endpoint.size();
  if (zmq_getsockopt(socket.get(), ZMQ_LAST_ENDPOINT, endpoint.data(), &length) == 0) {
    bound = endpoint.data();
  }
  return socket;
}

absl::Status KvEventPublisher::Subscribe(uint64_t start) {
  const auto wake = [bell = wake_] { eventfd_write(bell->get(), 1); };
  ASSIGN_OR_RETURN(subscription_, feed_.Subscribe(start, wake));
  return absl::OkStatus();
}

void KvEventPublisher::Run() {
  while (!stop_) {
    const bool more = PublishSome();
    std::array<zmq_pollitem_t, 2> items{};
    items[0] = {.socket = nullptr, .fd = wake_->get(), .events = ZMQ_POLLIN, .revents = 0};
    items[1] = {.socket = replay_.get(), .fd = -1, .events = ZMQ_POLLIN, .revents = 0};
    if (zmq_poll(items.data(), replay_ != nullptr ? 2 : 1, more ? 0 : -1) <= 0) continue;
    eventfd_t count;
    if (items[0].revents != 0) eventfd_read(wake_->get(), &count);
    if (items[1].revents != 0) AnswerReplay();
  }
}

bool KvEventPublisher::PublishSome() {
  for (int sent = 0; sent < kPublishAtOnce; ++sent) {
    if (subscription_ == nullptr) return false;
    const absl::StatusOr<KvEventBatchPtr> batch = subscription_->Next();
    if (batch.ok() && *batch == nullptr) return false;
    if (batch.ok()) {
      const std::array<char, 8> number = MostSignificantFirst(Published(**batch));
      const std::string events = EncodeKvEvents(**batch, options_.encoding);
      Send(publish_.get(), {options_.topic, View(number), events});
      continue;
    }
    subscription_.reset();
    if (!absl::IsDataLoss(batch.status())) return false;  // the feed has been closed
    // Subscribers see the gap, and may ask for it.
    on_trouble_(batch.status());
    const absl::Status again = Subscribe(feed_.log()->last_sequence() + 1);
    if (!again.ok()) on_trouble_(again);
  }
  return true;
}

void KvEventPublisher::Send(void* socket, const std::vector<std::string_view>& frames) const {
  for (const std::string_view& frame : frames) {
    const int more = &frame != &frames.back() ? ZMQ_SNDMORE : 0;
    if (zmq_send(socket, frame.data(), frame.size(), ZMQ_DONTWAIT | more) < 0) return;
  }
}

// One request at a time: what is published does not wait for all of them.
void KvEventPublisher::AnswerReplay() {
  const std::vector<std::string> frames = Receive(replay_.get());
  if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != sizeof(uint64_t)) return;
  Replay(frames[0], ReadNumber(frames[2]));
}

void KvEventPublisher::Replay(std::string_view reader, uint64_t number) {
  const uint64_t last = feed_.log()->last_sequence();  // what comes later is published anyway
  // The log counts from 1.
  const auto subscription = feed_.Subscribe(number == kEndOfReplay ? number : number + 1, [] {});
  const auto answer = [&](uint64_t batch, std::string_view events) {
    const std::array<char, 8> bytes = MostSignificantFirst(batch);
    Send(replay_.get(), {reader, std::string_view(), View(bytes), events});
  };
  while (subscription.ok()) {
    const absl::StatusOr<KvEventBatchPtr> batch = (*subscription)->Next();
    if (!batch.ok() || *batch == nullptr) break;
    if ((*batch)->sequence > last && !(*batch)->snapshot) break;
    answer(Published(**batch), EncodeKvEvents(**batch, options_.encoding));
  }
  answer(kEndOfReplay, "");
}

}  // namespace eta
