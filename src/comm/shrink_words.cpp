#include "comm/shrink_words.h"

#include "executor/host_machine.h"

#include <cstring>
#include <type_traits>

namespace tutti::comm {

namespace {

struct Said {
  std::uint64_t rank = 0;
  ShrinkPlace place;
};
static_assert(std::is_trivially_copyable_v<Said>);

}  // namespace

Bytes encode_shrink_words(const Control& control, int rank) {
  const Said said{static_cast<std::uint64_t>(rank), control.shrink_place(rank)};
  const std::size_t list_bytes = kShrinkLists * control.shrink_list_words() * sizeof(std::uint64_t);
  Bytes words(sizeof(said) + list_bytes);
  std::memcpy(words.data(), &said, sizeof(said));
  std::memcpy(words.data() + sizeof(said), control.shrink_list(rank), list_bytes);
  return words;
}

std::vector<Bytes> known_shrink_words(const Control& control, int own_rank) {
  std::vector<Bytes> known;
  for (int rank = 0; rank < control.ranks(); ++rank) {
    if (rank != own_rank && control.shrink_place(rank).word != 0) known.push_back(encode_shrink_words(control, rank));
  }
  return known;
}

bool store_shrink_words(const Control& control, int own_rank, const Bytes& words) {
  Said said;
  const std::size_t list_words = kShrinkLists * control.shrink_list_words();
  if (words.size() != sizeof(said) + list_words * sizeof(std::uint64_t)) return false;
  std::memcpy(&said, words.data(), sizeof(said));
  if (said.rank >= static_cast<std::uint64_t>(control.ranks())) return false;
  const auto rank = static_cast<int>(said.rank);
  ShrinkPlace& place = control.shrink_place(rank);
  // Words only grow, so that what comes by several ways counts once.
  if (rank == own_rank || said.place.word <= place.word) return false;
  executor::store_release(&place.objected, 0);
  for (std::size_t i = 0; i < list_words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, words.data() + sizeof(said) + i * sizeof(word), sizeof(word));
    executor::store_release(control.shrink_list(rank) + i, word);
  }
  const ShrinkPlace& told = said.place;
  place.id = told.id;
  executor::store_release(&place.objected_to, told.objected_to);
  executor::store_release(&place.objected, told.objected);
  executor::store_release(&place.gone, told.gone);
  executor::store_release(&place.gave_up, told.gave_up);
  executor::store_release(&place.word, told.word);
  return true;
}

}  // namespace tutti::comm
