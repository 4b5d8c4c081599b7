// Calls between hosts, with what must come out of them: of ranks that a test imitates hosts with (TEST_RANKS_PER_HOST).
#pragma once

#include "crew.h"

#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace far_calls {

/// The usual prices for all: which inputs go which way does not depend on what is measured.
void set_hosts_of(int ranks);
void unset_hosts();

/// This thread to one of the usable cores, counted in order.
std::string stay_on_core(int number);
/// All ranks on one core, so that one of the hosts adds up for all. On any machine: else how many cores it has decides.
std::string share_a_core();
int usable_cores();

std::string all_reduce(const crew::Member& m, std::size_t count, int base, bool in_place, ncclComm_t comm);
/// `same`: alike on all ranks.
std::string any_call(const crew::Member& m, std::span<const std::size_t> counts, std::mt19937& same, ncclComm_t comm);
/// So many of them, and now and then some rank is late.
std::string random_calls(const crew::Member& m, std::span<const std::size_t> counts, unsigned seed, int calls,
                         ncclComm_t comm);

/// Sums that depend on the order: in rank order where that was asked for, and else the same on all ranks.
std::string check_bits(const crew::Member& m, std::size_t count, bool in_rank_order, ncclComm_t comm);

/// What this rank sends to other hosts in an all-reduce of ints.
std::string count_sent(const crew::Member& m, std::size_t count, std::uint64_t* sent, ncclComm_t comm);
/// That so many bytes, and little beside them, are sent.
std::string expect_sent(std::uint64_t sent, std::uint64_t bytes);

/// Of one rank the count of a call is another one, now of such a call too, now of a short one. Who is late sends its line by itself. Between
/// them calls come out right.
std::string make_calls_that_differ(const crew::Member& m, std::size_t count, ncclComm_t comm);
/// One rank, late, sums what the others gather, of the same size.
std::string sum_what_others_gather(const crew::Member& m, std::size_t count, ncclComm_t comm);

}  // namespace far_calls
