#include "check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti::bench {
namespace {

constexpr int kPoison = 0x5c;

void repeat(std::byte* to, std::size_t bytes, const std::vector<std::byte>& tile) {
  for (std::size_t done = 0; done < bytes; done += tile.size())
    std::memcpy(to + done, tile.data(), std::min(tile.size(), bytes - done));
}

std::string hex(const std::byte* element, int bytes) {
  std::string text = "0x";
  for (int n = bytes - 1; n >= 0; --n) text += fmt::format("{:02x}", static_cast<unsigned>(element[n]));
  return text;
}

}  // namespace

std::size_t Trial::receive_bytes(const Call& call, bool in_place) const {
  const std::size_t blocks = in_place ? collective_.blocks(call.ranks) : collective_.output_blocks(call.ranks);
  return bytes(call.count * blocks);
}

void Trial::place(Call& call, bool in_place) const {
  const std::byte* send = send_.address();
  std::byte* receive = receive_.address();
  if (in_place) {
    send = receive + bytes(collective_.in_place_input(call.rank) * call.count);
    receive += bytes(collective_.in_place_output(call.rank) * call.count);
  }
  call.send = send;
  call.receive = receive;
}

std::byte* Trial::host_view(const void* address, bool in_place) const {
  Buffer& buffer = in_place ? receive_ : send_;
  return buffer.data() + (static_cast<const std::byte*>(address) - buffer.address());
}

Status Trial::fill(const Call& call, bool in_place) const {
  const std::size_t input_bytes = bytes(call.count * collective_.input_blocks(call.ranks));
  std::memset(receive_.data(), kPoison, receive_bytes(call, in_place));
  receive_.set_guards(receive_bytes(call, in_place));
  send_.set_guards(input_bytes);
  std::byte* const input = host_view(call.send, in_place);
  for (std::size_t block = 0; call.count > 0 && block < collective_.input_blocks(call.ranks); ++block)
    repeat(input + bytes(block * call.count), bytes(call.count), reference_.input(call.rank, block, call.count));
  TUTTI_TRY(send_.upload(input_bytes));
  return receive_.upload(receive_bytes(call, in_place));
}

void Trial::check_blocks(const Call& call, const std::byte* data, std::size_t blocks, bool output,
                         CheckResult& result) const {
  const auto element_bytes = static_cast<std::size_t>(type_.bytes);
  for (std::size_t block = 0; block < blocks && call.count > 0; ++block) {
    const std::vector<std::byte> tile =
        output ? reference_.expected(call.rank, block, call.count) : reference_.input(call.rank, block, call.count);
    const std::byte* from = data + bytes(block * call.count);
    for (std::size_t done = 0; done < bytes(call.count); done += tile.size()) {
      const std::size_t length = std::min(tile.size(), bytes(call.count) - done);
      if (std::memcmp(from + done, tile.data(), length) == 0) continue;
      for (std::size_t at = 0; at < length; at += element_bytes) {
        if (std::memcmp(from + done + at, &tile[at], element_bytes) == 0) continue;
        ++result.wrong_elements;
        if (result.first.empty())
          result.first = fmt::format("{} block {} element {}: {} where {} is right",
                                     output ? "output" : "input (must not change)", block, (done + at) / element_bytes,
                                     hex(from + done + at, type_.bytes), hex(&tile[at], type_.bytes));
      }
    }
  }
}

Result<CheckResult> Trial::check(const Call& call, bool in_place) const {
  const std::size_t input_blocks = collective_.input_blocks(call.ranks);
  TUTTI_TRY(send_.download(bytes(call.count * input_blocks)));
  TUTTI_TRY(receive_.download(receive_bytes(call, in_place)));
  CheckResult result;
  if (collective_.has_output(call.rank, call.root))
    check_blocks(call, host_view(call.receive, true), collective_.output_blocks(call.ranks), true, result);
  if (!in_place) check_blocks(call, host_view(call.send, false), input_blocks, false, result);
  result.damaged_guard_bytes = static_cast<std::int64_t>(receive_.damaged_guards(receive_bytes(call, in_place)) +
                                                         send_.damaged_guards(bytes(call.count * input_blocks)));
  if (result.damaged_guard_bytes > 0 && result.first.empty())
    result.first = fmt::format("{} bytes next to the buffers were overwritten", result.damaged_guard_bytes);
  return result;
}

}  // namespace tutti::bench
