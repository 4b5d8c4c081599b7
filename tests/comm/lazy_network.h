// A network in which hardly anything comes when it is looked for: of what a TCP socket has, a receive gets a part, or nothing for a while, and
// of what is long a send takes a part or nothing. Now and then a socket is slow for long, while much that was sent later comes by others.
// For executables that export their symbols: the library's receives and sends are found here then.
#pragma once

#include <cstdint>

namespace tutti::test {

/// From here on in this process, and its children: nothing waits longer than so many microseconds at a time. 0: all comes at once.
void be_lazy(std::uint64_t seed, std::uint64_t longest_us);
/// The n-th message by TCP from now on ends its connection instead.
void break_at(int n);

}  // namespace tutti::test
