#include "sim/memory.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::sim {

/// What word `l`, stored by the first thread of a race, says about the second: empty if it says nothing.
std::string Memory::explain(const Location& l, const Conflict& race) const {
  const int first = race.before.thread;
  const int second = race.now.thread;
  const auto publishes = [&](const Store& s) { return s.thread == first && s.moment >= race.before.moment; };
  const auto store = std::find_if(l.stores.begin() + 1, l.stores.end(), publishes);
  if (store == l.stores.end()) return {};
  const auto index = static_cast<std::uint32_t>(store - l.stores.begin());
  std::uint32_t seen = 0;
  for (const Knowledge& k : l.known) {
    if (k.thread == second) seen = std::max(seen, k.index);
  }
  std::size_t offset = 0;
  const Area& area = *area_of(bytes_.get() + l.offset, offset);
  const std::string word = describe_word(area, offset);
  if (seen < index) {
    return fmt::format("rank {} says so with {} = {}, but rank {} has seen only {}: it did not wait for it", first,
                       word, store->value, second, l.stores[seen].value);
  }
  if (!store->release) {
    return fmt::format("rank {} says so with {} = {}, and rank {} has seen that, but the store was no release", first,
                       word, store->value, second);
  }
  return fmt::format("rank {} says so with {} = {}, and rank {} has seen that, but by a load that was no acquire",
                     first, word, store->value, second);
}

std::string Memory::missing(const Conflict& race) const {
  const int first = race.before.thread;
  const int second = race.now.thread;
  std::string other;
  for (std::size_t i = 0; i < location_count_; ++i) {
    const Location& l = locations_[i];
    std::size_t offset = 0;
    const Area& area = *area_of(bytes_.get() + l.offset, offset);
    const bool between = writer_of(area, offset) == first && (area.peer == second || area.kind == AreaKind::kAnnounce);
    if (!between || area.kind == AreaKind::kLines) continue;
    // After a write the tail says that it is there, after a read the head that it is done.
    const bool tail = area.kind != AreaKind::kCounts || offset == 0;
    std::string text = explain(l, race);
    if (text.empty()) continue;
    const bool same_lane = area.lane == race.now.position.lane;
    if (same_lane && tail == race.before.write) return text;
    if (other.empty()) other = std::move(text);
  }
  if (!other.empty()) return other;
  return fmt::format("rank {} has told rank {} nothing since then, so rank {} cannot have waited for it", first, second,
                     second);
}

}  // namespace tutti::sim
