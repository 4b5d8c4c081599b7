// A heap of numbered things by time, of which each can be there once and be moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tutti::schedule {

class TimedHeap {
 public:
  bool empty() const { return heap_.empty(); }
  double first_time() const { return heap_.front().first; }
  int first() const { return heap_.front().second; }

  /// Puts it in, or moves it. Of equal times the lower number is first.
  void set(int number, double time) {
    const auto index = static_cast<std::size_t>(number);
    if (index >= places_.size()) places_.resize(index + 1, kNowhere);
    if (places_[index] == kNowhere) {
      places_[index] = heap_.size();
      heap_.emplace_back(time, number);
    } else {
      heap_[places_[index]].first = time;
    }
    down(up(places_[index]));
  }
  void pop() { erase(heap_.front().second); }
  void erase(int number) {
    const std::size_t place = places_[static_cast<std::size_t>(number)];
    places_[static_cast<std::size_t>(number)] = kNowhere;
    const auto last = heap_.back();
    heap_.pop_back();
    if (place == heap_.size()) return;
    put(place, last);
    down(up(place));
  }

 private:
  static constexpr std::size_t kNowhere = SIZE_MAX;
  using Entry = std::pair<double, int>;

  void put(std::size_t place, const Entry& entry) {
    heap_[place] = entry;
    places_[static_cast<std::size_t>(entry.second)] = place;
  }
  std::size_t up(std::size_t place) {
    const Entry entry = heap_[place];
    while (place > 0 && entry < heap_[(place - 1) / 2]) {
      put(place, heap_[(place - 1) / 2]);
      place = (place - 1) / 2;
    }
    put(place, entry);
    return place;
  }
  void down(std::size_t place) {
    const Entry entry = heap_[place];
    for (;;) {
      std::size_t child = 2 * place + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
      if (entry <= heap_[child]) break;
      put(place, heap_[child]);
      place = child;
    }
    put(place, entry);
  }

  std::vector<Entry> heap_;
  std::vector<std::size_t> places_;
};

}  // namespace tutti::schedule
