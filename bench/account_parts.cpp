// bench/account's measurements: an all-reduce of two processes, and the parts that it is made of, by hand, in turn in one run.
//
//   account-parts BYTES          prints a JSON object of medians in nanoseconds
//   account-parts BYTES CALLS    makes so many calls and no measurement, for programs that count
#include <nccl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <tutti/tutti.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kRounds = 60;
constexpr int kRepeats = 9;  ///< of a part in a round
constexpr double kBatchNs = 1e6;
constexpr std::uint64_t kLooks = 1 << 20;

double now_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void copy_ordinarily(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

/// Past the caches where the processor has such stores; `to` begins at a cache line.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  std::size_t at = 0;
  for (; at + sizeof(__m128i) <= bytes; at += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
  }
  std::memcpy(to + at, from + at, bytes - at);
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

[[noreturn]] void give_up(const char* what, const char* why) {
  std::fprintf(stderr, "account-parts: %s: %s\n", what, why);
  std::_Exit(1);
}

struct alignas(64) Line {
  std::atomic<std::uint64_t> word{0};
};
/// What the two processes share, followed by `bytes` for handing over.
struct Shared {
  Line lines[2];
  std::atomic<std::uint64_t> address{0};  ///< rank 1's input
  std::atomic<int> pid{0};
  std::atomic<bool> has_id{false};
  ncclUniqueId id;
  alignas(64) std::uint64_t batch = 0;  ///< calls of a batch, rank 0's
};

class Pair {
 public:
  Pair(int rank, pid_t parent, std::size_t bytes, Shared& shared, std::byte* between)
      : rank_(rank),
        parent_(parent),
        bytes_(bytes),
        shared_(shared),
        between_(between),
        input_(bytes / sizeof(float), 1.0f),
        output_(bytes / sizeof(float)) {
    if (rank_ == 0) {
      if (ncclGetUniqueId(&shared_.id) != ncclSuccess) give_up("ncclGetUniqueId", ncclGetLastError(nullptr));
      shared_.has_id = true;
    } else {
      shared_.address = reinterpret_cast<std::uint64_t>(input_.data());
      shared_.pid = getpid();
    }
    while (!shared_.has_id || shared_.pid == 0) {
      check_other();
      sched_yield();
    }
    if (ncclCommInitRank(&comm_, 2, shared_.id, rank_) != ncclSuccess)
      give_up("ncclCommInitRank", ncclGetLastError(nullptr));
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() { (void)ncclCommDestroy(comm_); }

  void call() {
    if (ncclAllReduce(input_.data(), output_.data(), input_.size(), ncclFloat, ncclSum, comm_, nullptr) != ncclSuccess)
      give_up("ncclAllReduce", ncclGetLastError(comm_));
  }
  /// How the call's data goes, as the library says.
  const char* way() const {
    char text[1 << 16];
    if (tuttiExplain(comm_, tuttiAllReduce, input_.size(), ncclFloat, ncclSum, 0, text, sizeof text, nullptr) !=
        ncclSuccess)
      give_up("tuttiExplain", ncclGetLastError(comm_));
    const char* const chosen = std::strstr(text, "\n* ");
    if (chosen == nullptr) return "lines";
    const char* const end = std::strchr(chosen + 1, '\n');
    const std::string row(chosen, end ? end : chosen + std::strlen(chosen));
    return row.find("slots") != std::string::npos   ? "slots"
           : row.find("lines") != std::string::npos ? "lines"
                                                    : "single copies";
  }
  /// Each tells the other by one cache line.
  void exchange() {
    const std::uint64_t next = ++exchanges_;
    shared_.lines[rank_].word.store(next, std::memory_order_release);
    for (std::uint64_t looks = 1; shared_.lines[1 - rank_].word.load(std::memory_order_acquire) < next; ++looks) {
      if (looks % kLooks == 0) check_other();
    }
  }
  /// Nanoseconds of `body`, of calls that both make.
  template <class Body>
  double both(Body&& body) {
    body();
    exchange();
    const double start = now_ns();
    body();
    const double once = std::max(now_ns() - start, 10.0);
    if (rank_ == 0) shared_.batch = static_cast<std::uint64_t>(std::clamp(kBatchNs / once, 1.0, 10000.0));
    exchange();
    const std::uint64_t batch = shared_.batch;
    exchange();
    const double begin = now_ns();
    for (std::uint64_t i = 0; i < batch; ++i) body();
    return (now_ns() - begin) / static_cast<double>(batch);
  }
  struct HandOver {
    double write_ns;
    double read_ns;
  };
  /// Rank 1 writes so many bytes of its input into shared memory, and rank 0 reads them from there: each in its cache, as in a call.
  HandOver hand_over(std::size_t bytes, void (*copy)(std::byte*, const std::byte*, std::size_t)) {
    const auto* const from = reinterpret_cast<const std::byte*>(input_.data());
    std::vector<double> times;
    for (int i = 0; i < kRepeats; ++i) {
      if (rank_ == 1) times.push_back(timed([&] { copy(between_, from, bytes); }));
      exchange();
      if (rank_ == 0) times.push_back(timed([&] { std::memcpy(output_.data(), between_, bytes); }));
      exchange();
    }
    const double mine = median(times);
    if (rank_ == 1) written_ns() = mine;
    exchange();
    return {written_ns(), mine};
  }
  /// Rank 0 copies so many bytes of rank 1's input by a system call; 0: the kernel forbids it.
  double remote_copy(std::size_t bytes) {
    bool fine = true;
    std::vector<double> times;
    for (int i = 0; i < kRepeats && rank_ == 0; ++i) {
      const iovec local{output_.data(), bytes};
      const iovec remote{reinterpret_cast<void*>(shared_.address.load()), bytes};  // NOLINT(performance-no-int-to-ptr)
      times.push_back(timed([&] {
        fine = fine && process_vm_readv(shared_.pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
      }));
    }
    exchange();
    return rank_ == 0 && fine ? median(times) : 0;
  }
  /// Adds so many bytes of this process's own memory, while the other does the same.
  double sum(std::size_t bytes) {
    std::vector<double> times;
    exchange();
    for (int i = 0; i < kRepeats; ++i) {
      times.push_back(timed([&] {
        float* const to = output_.data();
        const float* const from = input_.data();
        for (std::size_t k = 0; k < bytes / sizeof(float); ++k) to[k] = to[k] + from[k];
      }));
    }
    return median(times);
  }

 private:
  template <class Body>
  static double timed(Body&& body) {
    const double start = now_ns();
    body();
    return now_ns() - start;
  }
  /// A parent's child that has ended early, or a child's parent.
  void check_other() const {
    if (rank_ == 0 ? waitpid(-1, nullptr, WNOHANG) != 0 : getppid() != parent_)
      give_up("the other process", "it has ended");
  }
  double& written_ns() const { return *reinterpret_cast<double*>(between_ + bytes_); }

  const int rank_;
  const pid_t parent_;
  const std::size_t bytes_;
  Shared& shared_;
  std::byte* const between_;
  std::vector<float> input_;
  std::vector<float> output_;
  ncclComm_t comm_ = nullptr;
  std::uint64_t exchanges_ = 0;
};

void pin(int rank) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || seen++ != rank) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

void measure(Pair& pair, std::size_t bytes, bool prints) {
  const std::size_t half = std::max<std::size_t>(bytes / 2 / sizeof(float) * sizeof(float), sizeof(float));
  std::vector<double> calls, exchanges, writes, reads, past_writes, past_reads, remotes, sums;
  for (int round = 0; round < kRounds; ++round) {
    calls.push_back(pair.both([&] { pair.call(); }));
    exchanges.push_back(pair.both([&] { pair.exchange(); }));
    const Pair::HandOver handed = pair.hand_over(half, copy_ordinarily);
    const Pair::HandOver past = pair.hand_over(half, copy_past_caches);
    writes.push_back(handed.write_ns);
    reads.push_back(handed.read_ns);
    past_writes.push_back(past.write_ns);
    past_reads.push_back(past.read_ns);
    remotes.push_back(pair.remote_copy(half));
    sums.push_back(pair.sum(half));
  }
  if (!prints) return;
  std::printf(
      "{\"bytes\": %zu, \"half\": %zu, \"way\": \"%s\", \"call\": %.1f, \"exchange\": %.1f, \"write\": %.1f, \"read\": "
      "%.1f, "
      "\"past_write\": %.1f, \"past_read\": %.1f, \"remote\": %.1f, \"sum\": %.1f}\n",
      bytes, half, pair.way(), median(calls), median(exchanges), median(writes), median(reads), median(past_writes),
      median(past_reads), median(remotes), median(sums));
}

}  // namespace

int main(int count, char** words) {
  const std::size_t bytes = count > 1 ? std::strtoull(words[1], nullptr, 10) / sizeof(float) * sizeof(float) : 0;
  const long calls = count > 2 ? std::strtol(words[2], nullptr, 10) : 0;
  if (bytes == 0 || count > 3 || (count == 3 && calls <= 0)) {
    std::fputs("usage: account-parts BYTES [CALLS]\n", stderr);
    return 2;
  }
  void* const memory =
      mmap(nullptr, sizeof(Shared) + bytes + 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("mmap", std::strerror(errno));
  auto* const shared = new (memory) Shared;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) give_up("fork", std::strerror(errno));
  const int rank = child == 0 ? 1 : 0;
  pin(rank);
  {
    Pair pair(rank, parent, bytes, *shared, static_cast<std::byte*>(memory) + sizeof(Shared));
    if (calls == 0) measure(pair, bytes, rank == 0);
    for (long i = 0; i < calls; ++i) pair.call();
  }
  if (child == 0) std::_Exit(0);
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) return 1;
  return 0;
}
