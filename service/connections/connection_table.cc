#include "service/connections/connection_table.h"

#include <netinet/in.h>
#include <sys/stat.h>

#include <cstring>

namespace eta {

std::string PeerKey(const sockaddr_storage& peer) {
  const auto bytes = [](const void* from, size_t count) {
    return std::string(static_cast<const char*>(from), count);
  };
  if (peer.ss_family == AF_INET) {
    return bytes(&reinterpret_cast<const sockaddr_in*>(&peer)->sin_addr, 4);
  }
  if (peer.ss_family != AF_INET6) return "";
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return bytes(&address.s6_addr[12], 4);
  // A provider gives a customer these 8 bytes; the customer chooses the rest.
  return bytes(&address, 8);
}

ConnectionTable::Room ConnectionTable::Add(int fd, const std::string& peer) {
  const MutexLock lock(mutex_);
  // The number was free, so what it stood for is gone.
  if (const auto old = connections_.find(fd); old != connections_.end()) {
    ForgetPeer(old->second.peer);
    connections_.erase(old);
  }
  Room room = RoomFor(peer);
  if (room != Room::kYes && Clock::now() - refreshed_ >= kRefreshPeriod) {
    Refresh();
    room = RoomFor(peer);
  }
  if (room != Room::kYes) return room;
  struct stat file {};
  fstat(fd, &file);
  connections_.emplace(fd, Connection{file.st_dev, file.st_ino, peer});
  ++of_peer_[peer];
  return room;
}

int ConnectionTable::Open() {
  const MutexLock lock(mutex_);
  Refresh();
  return static_cast<int>(connections_.size());
}

ConnectionTable::Room ConnectionTable::RoomFor(const std::string& peer) const {
  const auto found = of_peer_.find(peer);
  const int held = found == of_peer_.end() ? 0 : found->second;
  if (max_per_peer_ > 0 && !peer.empty() && held >= max_per_peer_) return Room::kPeerFull;
  const auto open = static_cast<int>(connections_.size());
  return open < max_ || (held == 0 && open < max_ + kSpare) ? Room::kYes : Room::kFull;
}

void ConnectionTable::ForgetPeer(const std::string& peer) {
  const auto found = of_peer_.find(peer);
  if (--found->second == 0) of_peer_.erase(found);
}

void ConnectionTable::Refresh() {
  refreshed_ = Clock::now();
  std::erase_if(connections_, [this](const Connections::value_type& entry) REQUIRES(mutex_) {
    const Connection& connection = entry.second;
    struct stat file {};
    if (fstat(entry.first, &file) == 0 && file.st_dev == connection.device &&
        file.st_ino == connection.inode) {
      return false;
    }
    ForgetPeer(connection.peer);
    return true;
  });
}

}  // namespace eta
