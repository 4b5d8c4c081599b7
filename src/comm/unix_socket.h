// Stream sockets in the abstract Unix namespace: names that leave no file behind and end with their last holder.
#pragma once

#include "base/result.h"
#include "comm/private_descriptor.h"

#include <cstdint>
#include <string_view>

namespace tutti::comm {

inline constexpr std::string_view kUnixPrefix = "unix:@";

/// Non-blocking and close-on-exec, like all sockets here. `address` is "unix:@name".
Result<PrivateDescriptor> listen_unix(std::string_view address);

/// Empty and errno if the connection cannot be made: EAGAIN when the listener's queue is full, EMFILE when this process
/// has no descriptor left, ECONNREFUSED when nobody listens.
PrivateDescriptor connect_unix(std::string_view address);

/// Not a TCP socket: descriptors travel by it.
bool is_unix(int socket);

/// Process id of the other side as this process sees it, 0 if unknown. For an accepted connection: of who connected;
/// for a made one: of who listens.
std::int32_t peer_process(int socket);

}  // namespace tutti::comm
