#include "comm/shrink_words.h"

#include "executor/host_machine.h"

#include <cstring>
#include <type_traits>

namespace tutti::comm {

static_assert(std::is_trivially_copyable_v<ShrinkPlace>);

Bytes encode_shrink_words(const Control& control, int rank) {
  const std::size_t list_bytes = control.shrink_list_words() * sizeof(std::uint64_t);
  Bytes words(sizeof(ShrinkPlace) + list_bytes);
  std::memcpy(words.data(), &control.shrink_place(rank), sizeof(ShrinkPlace));
  std::memcpy(words.data() + sizeof(ShrinkPlace), control.shrink_list(rank), list_bytes);
  return words;
}

void store_shrink_words(const Control& control, int rank, const Bytes& words) {
  const std::size_t list_words = control.shrink_list_words();
  if (words.size() != sizeof(ShrinkPlace) + list_words * sizeof(std::uint64_t)) return;
  ShrinkPlace told;
  std::memcpy(&told, words.data(), sizeof(told));
  for (std::size_t i = 0; i < list_words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, words.data() + sizeof(told) + i * sizeof(word), sizeof(word));
    executor::store_release(control.shrink_list(rank) + i, word);
  }
  ShrinkPlace& place = control.shrink_place(rank);
  place.id = told.id;
  executor::store_release(&place.objected_to, told.objected_to);
  executor::store_release(&place.objected, told.objected);
  executor::store_release(&place.gone, told.gone);
  executor::store_release(&place.gave_up, told.gave_up);
  executor::store_release(&place.word, told.word);
}

}  // namespace tutti::comm
