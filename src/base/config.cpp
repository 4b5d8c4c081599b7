#include "base/config.h"

#include "base/config_files.h"
#include "base/first_use.h"
#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string variable(const char* key) {
  const char* const value = std::getenv(key);
  return value == nullptr ? "" : value;
}

/// Reads one variable after the other, of the environment or of NCCL's files, and keeps a complaint about each bad one. An empty value
/// counts as unset.
class Reader {
 public:
  Reader() : files_(read_config_files(variable("NCCL_CONF_FILE"), variable("HOME"))) {
    complaints_ = std::move(files_.complaints);
  }

  std::optional<std::string_view> text(const char* key) {
    asked_.insert(key);
    const char* const value = std::getenv(key);
    if (value != nullptr && *value != '\0') return value;
    const auto in_file = files_.values.find(key);
    if (in_file == files_.values.end() || in_file->second.empty()) return std::nullopt;
    return in_file->second;
  }

  /// NCCL's variables and Tutti's that are set and that nobody has asked for, `elsewhere` apart.
  std::vector<std::string> ignored(std::initializer_list<const char*> elsewhere) const {
    std::set<std::string, std::less<>> names;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      names.emplace(text.substr(0, text.find('=')));
    }
    for (const auto& [name, value] : files_.values) names.insert(name);
    std::vector<std::string> left;
    for (const std::string& name : names) {
      const bool known = asked_.contains(name) || std::ranges::find(elsewhere, name) != elsewhere.end();
      const bool is_ours = name.starts_with("NCCL_") || name.starts_with("TUTTI_");
      if (is_ours && !known) left.push_back(name);
    }
    return left;
  }

  void read(const char* key, std::string& field) {
    if (const auto value = text(key)) field = *value;
  }

  /// True if the variable was set to a good value.
  bool read(const char* key, bool& field) {
    const auto value = text(key);
    if (!value) return false;
    if (*value != "0" && *value != "1") return reject(key, *value, "0 or 1");
    field = *value == "1";
    return true;
  }

  void read_choice(const char* key, std::string& field, std::initializer_list<std::string_view> choices) {
    const auto value = text(key);
    if (!value) return;
    const std::string wanted = lower(*value);
    if (std::find(choices.begin(), choices.end(), wanted) != choices.end()) {
      field = wanted;
      return;
    }
    reject(key, *value, fmt::format("one of {}", fmt::join(choices, ", ")));
  }

  /// Of addresses.
  void read_family(const char* key, std::string& field) { read_choice(key, field, {"af_inet", "af_inet6"}); }

  void read_seconds(const char* key, double& field) {
    const auto value = text(key);
    if (!value) return;
    double seconds = 0;
    const auto [end, failure] = std::from_chars(value->data(), value->data() + value->size(), seconds);
    const bool whole = failure == std::errc() && end == value->data() + value->size();
    if (whole && std::isfinite(seconds) && seconds >= 0) {
      field = seconds;
      return;
    }
    reject(key, *value, "seconds, such as 30 or 0.5; 0 = never");
  }

  /// Bytes with an optional K, M or G (powers of 1024), at most `max`.
  template <class Field>
  void read_bytes(const char* key, Field& field, std::size_t multiple, std::size_t max,
                  std::string_view zero = "chosen by the library") {
    const auto value = text(key);
    if (!value) return;
    std::uint64_t number = 0;
    const char* const stop = value->data() + value->size();
    const auto [end, failure] = std::from_chars(value->data(), stop, number);
    int shift = 0;
    bool good = failure == std::errc();
    if (good && end != stop) {
      const std::size_t unit = std::string_view("kmg").find(lower({end, stop}));
      good = stop - end == 1 && unit != std::string_view::npos;
      shift = good ? 10 * static_cast<int>(unit + 1) : 0;
    }
    if (good && number <= (max >> shift) && (number << shift) % multiple == 0) {
      field = number << shift;
      return;
    }
    const std::string rule = multiple > 1 ? fmt::format(", a multiple of {}", multiple) : "";
    reject(key, *value, fmt::format("bytes, such as 65536, 64K or 1M{}, at most {}; 0 = {}", rule, max, zero));
  }

  /// A bad level still shows warnings: whoever sets the variable wants to read something, this complaint first.
  LogLevel read_log_level(const char* key) {
    const auto value = text(key);
    if (!value) return LogLevel::kNone;
    constexpr std::string_view kNames[] = {"none", "version", "warn", "info", "trace"};
    const auto* const found = std::find(std::begin(kNames), std::end(kNames), lower(*value));
    if (found != std::end(kNames)) return static_cast<LogLevel>(found - std::begin(kNames));
    reject(key, *value, "one of NONE, VERSION, WARN, INFO, TRACE");
    return LogLevel::kWarn;
  }

  /// NCCL_DEBUG_SUBSYS: "INIT,GRAPH", "^TUNING", "ALL". NCCL's other subjects are no mistake; nothing here is about them.
  void read_subjects(const char* key, unsigned& subjects) {
    const auto value = text(key);
    if (!value) return;
    constexpr std::pair<std::string_view, unsigned> kNames[] = {
        {"init", 1},  {"graph", 2}, {"tuning", 4}, {"env", 8},     {"all", ~0u}, {"bootstrap", 0},
        {"coll", 0},  {"p2p", 0},   {"shm", 0},    {"net", 0},     {"alloc", 0}, {"call", 0},
        {"proxy", 0}, {"nvls", 0},  {"reg", 0},    {"profile", 0}, {"ras", 0}};
    std::string list = lower(*value);
    const bool exclude = list.front() == '^';
    if (exclude) list.erase(0, 1);
    unsigned named = 0;
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t end = std::min(list.find(',', begin), list.size());
      const std::string_view word = std::string_view(list).substr(begin, end - begin);
      const auto* const found =
          std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& name) { return name.first == word; });
      if (found == std::end(kNames)) {
        reject(key, *value,
               "a list of INIT, GRAPH, TUNING, ENV, ALL or NCCL's other subjects, such as INIT,GRAPH; ^ in "
               "front leaves out those listed");
        return;
      }
      named |= found->second;
      begin = end + 1;
    }
    subjects = exclude ? ~named : named;
  }

  /// A rank.
  void read_rank(const char* key, int& field) {
    const auto value = text(key);
    if (!value) return;
    int number = 0;
    const auto [end, failure] = std::from_chars(value->data(), value->data() + value->size(), number);
    if (failure == std::errc() && end == value->data() + value->size() && number >= 0) {
      field = number;
    } else {
      reject(key, *value, "a rank, 0 or more");
    }
  }

  /// A number from 1 to `most`.
  void read_count(const char* key, int& field, int most) {
    const auto value = text(key);
    if (!value) return;
    int number = 0;
    const auto [end, failure] = std::from_chars(value->data(), value->data() + value->size(), number);
    if (failure == std::errc() && end == value->data() + value->size() && number >= 1 && number <= most) {
      field = number;
    } else {
      reject(key, *value, fmt::format("a number from 1 to {}", most));
    }
  }

  /// NCCL_PROTO's list of protocols.
  void read_protocols(const char* key, Protocols& protocols) {
    const auto value = text(key);
    if (!value) return;
    std::string list = lower(*value);
    const bool exclude = !list.empty() && list.front() == '^';
    if (exclude) list.erase(0, 1);
    bool named[3] = {};
    constexpr std::string_view kNames[] = {"simple", "ll", "ll128"};
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t end = std::min(list.find(',', begin), list.size());
      const auto* const found = std::find(std::begin(kNames), std::end(kNames), list.substr(begin, end - begin));
      if (found == std::end(kNames)) {
        reject(key, *value, "a list of Simple, LL and LL128, such as LL,Simple; ^ in front leaves out those listed");
        return;
      }
      named[found - std::begin(kNames)] = true;
      begin = end + 1;
    }
    const auto leaves = [&](int protocol) { return named[protocol] != exclude; };
    const bool lines = leaves(1) || leaves(2);
    protocols = lines == leaves(0) ? Protocols::kAny : lines ? Protocols::kLines : Protocols::kNoLines;
  }

  /// As strtol reads it: with 0 in front it is octal, with 0x hexadecimal. Too large for it: the largest.
  static std::optional<std::size_t> as_number(const std::string& word) {
    if (word.empty() || word[0] < '0' || word[0] > '9') return std::nullopt;
    char* end = nullptr;
    const long number = std::strtol(word.c_str(), &end, 0);
    return *end == '\0' ? std::optional(static_cast<std::size_t>(number)) : std::nullopt;
  }

  /// NCCL_P2P_LEVEL: a name, or one of the numbers that were there before the names. NCCL has further names, of ways that no memory is
  /// reached by; they stand between these.
  void read_p2p_level(const char* key, GpuDistance& level) {
    const auto value = text(key);
    if (!value) return;
    using enum GpuDistance;
    constexpr std::pair<std::string_view, GpuDistance> kNames[] = {
        {"loc", kSame},     {"nvl", kNvLink},   {"nvb", kNvLink},   {"c2c", kNvLink}, {"pix", kSwitch},
        {"pxb", kSwitches}, {"p2c", kSwitches}, {"pxn", kSwitches}, {"phb", kHost},   {"sys", kSystem}};
    constexpr GpuDistance kNumbers[] = {kSame, kSwitch, kSwitches, kHost, kSystem};
    const std::string word = lower(*value);
    const auto* const found = std::ranges::find(kNames, word, [](const auto& name) { return name.first; });
    if (found != std::end(kNames)) {
      level = found->second;
    } else if (const auto number = as_number(word)) {
      level = kNumbers[std::min<std::size_t>(*number, std::size(kNumbers) - 1)];
    } else {
      reject(key, *value,
             "LOC (no peer access), NVL (over NVLink), PIX (a PCI switch), PXB (several), PHB (a host bridge or NUMA "
             "node) or SYS (anywhere), or the numbers 0 (LOC), 1 (PIX), 2 (PXB), 3 (PHB) and 4 (SYS)");
    }
  }

  std::vector<std::string> take_complaints() { return std::move(complaints_); }

 private:
  bool reject(const char* key, std::string_view value, std::string_view accepted) {
    complaints_.push_back(fmt::format("{}={} is ignored: accepted is {}", key, value, accepted));
    return false;
  }

  ConfigFiles files_;
  std::set<std::string, std::less<>> asked_;
  std::vector<std::string> complaints_;
};

/// The file stays where it is if the program changes its directory later.
void make_absolute(std::string& path) {
  if (path.empty() || path.front() == '/') return;
  char directory[4096];
  if (getcwd(directory, sizeof(directory)) != nullptr) path = fmt::format("{}/{}", directory, path);
}

struct Loaded {
  Config config;
  std::vector<std::string> complaints;
  std::vector<std::string> ignored;
  std::atomic<bool> told{false};

  Loaded() {
    Reader reader;
    config.log_level = reader.read_log_level("NCCL_DEBUG");
    reader.read_subjects("NCCL_DEBUG_SUBSYS", config.log_subjects);
    reader.read("NCCL_DEBUG_FILE", config.log_file);
    make_absolute(config.log_file);
    reader.read("NCCL_ALGO", config.algorithm);
    reader.read_protocols("NCCL_PROTO", config.protocols);
    reader.read_choice("TUTTI_DEVICE", config.device, {"host", "cuda"});
    reader.read("NCCL_MULTI_RANK_GPU_ENABLE", config.multi_rank_gpu);
    reader.read("NCCL_GRAPH_MIXING_SUPPORT", config.graph_mixing);
    reader.read("NCCL_HOSTID", config.host_id);
    reader.read_choice("TUTTI_NET", config.network, {"auto", "tcp", "mpi"});
    reader.read_choice("TUTTI_CUDA_MPI", config.cuda_mpi, {"0", "1", "force"});
    reader.read_bytes("TUTTI_MPI_DIRECT_BYTES", config.mpi_direct_bytes, 1, std::size_t{1} << 40, "never");
    reader.read_count("NCCL_SOCKET_NTHREADS", config.socket_threads, 16);
    reader.read_count("NCCL_NSOCKS_PERTHREAD", config.sockets_per_thread, 16);
    reader.read_bytes("TUTTI_ZEROCOPY_BYTES", config.zero_copy_bytes, 1, std::size_t{1} << 40, "never");
    reader.read_seconds("TUTTI_HEARTBEAT_TIMEOUT_S", config.heartbeat_timeout_s);
    reader.read_seconds("TUTTI_TIMEOUT_S", config.timeout_s);
    reader.read("TUTTI_REPRODUCIBLE", config.reproducible);
    std::string wire;
    reader.read_choice("TUTTI_WIRE", wire, {"float32", "datatype"});
    config.wide_wire = wire == "float32";
    config.blocking_set = reader.read("NCCL_COMM_BLOCKING", config.blocking);
    reader.read("NCCL_P2P_DISABLE", config.p2p_disable);
    reader.read_p2p_level("NCCL_P2P_LEVEL", config.p2p_level);
    config.p2p_disable |= config.p2p_level == GpuDistance::kSame;
    reader.read("NCCL_SHM_DISABLE", config.shm_disable);
    reader.read("TUTTI_SINGLE_COPY", config.single_copy);
    reader.read("TUTTI_CALIBRATE", config.calibrate);
    reader.read_bytes("TUTTI_SLOT_BYTES", config.slot_bytes, 64, std::size_t{64} << 20);
    reader.read_bytes("TUTTI_SINGLE_COPY_MIN_BYTES", config.single_copy_min_bytes, 1, std::size_t{1} << 40);
    reader.read_bytes("TUTTI_CARRY_BYTES", config.carry_bytes, 1, std::size_t{1} << 30, "none");
    reader.read_bytes("TUTTI_SHARED_GPU_HOST_BYTES", config.shared_gpu_host_bytes, 1, std::size_t{1} << 40, "none");
    reader.read("TUTTI_EXPORT_BUFFERS", config.export_buffers);
    reader.read_seconds("TUTTI_IN_PLACE_WAIT_S", config.in_place_wait_s);
    reader.read_bytes("TUTTI_STREAM_MIN_BYTES", config.stream_min_bytes, 1, std::size_t{1} << 40);
    reader.read_choice("TUTTI_SLOT_STORES", config.slot_stores, {"ordinary", "streamed"});
    reader.read_bytes("TUTTI_STAGING_BYTES", config.staging_bytes, 4096, std::size_t{1} << 30);
    reader.read("TUTTI_TUNING_FILE", config.tuning_file);
    make_absolute(config.tuning_file);
    reader.read("NCCL_TOPO_FILE", config.topology_file);
    make_absolute(config.topology_file);
    reader.read("NCCL_TOPO_DUMP_FILE", config.topology_dump_file);
    make_absolute(config.topology_dump_file);
    reader.read_rank("NCCL_TOPO_DUMP_FILE_RANK", config.topology_dump_rank);
    reader.read("TUTTI_TOPOLOGY_LIBRARY", config.topology_library);
    reader.read("HWLOC_FSROOT", config.hwloc_root);
    std::string family;  // root_variables() has it; here a wrong one is told
    reader.read_family("NCCL_SOCKET_FAMILY", family);
    reader.read_choice("TUTTI_SIMD", config.simd, {"portable", "avx2", "avx512", "avx512-whole", "avx512-half"});
    complaints = reader.take_complaints();
    ignored = reader.ignored({"NCCL_CONF_FILE", "NCCL_COMM_ID", "NCCL_SOCKET_IFNAME", "TUTTI_RENDEZVOUS",
                              "TUTTI_RENDEZVOUS_TIMEOUT_S", "TUTTI_SECRET"});
  }
};

Loaded& loaded_config() {
  // Never destroyed: other static objects' destructors may still log.
  static constinit std::atomic<Loaded*> made{nullptr};
  if (Loaded* const loaded = made.load(std::memory_order_acquire)) return *loaded;
  const FirstUse first_use;
  if (made.load(std::memory_order_relaxed) == nullptr) made.store(new Loaded, std::memory_order_release);
  return *made.load(std::memory_order_relaxed);
}

}  // namespace

const Config& config() {
  Loaded& loaded = loaded_config();
  // The log asks for the configuration itself, so the complaints are told after it is complete, by whoever comes first.
  if (!loaded.told.load(std::memory_order_relaxed) && !loaded.told.exchange(true)) {
    for (const std::string& complaint : loaded.complaints) log_warn("{}", complaint);
    for (const std::string& name : loaded.ignored)
      log_info(LogSubject::kEnvironment, "{} is set, and has no effect here (docs/api.md lists what has)", name);
  }
  return loaded.config;
}

RootVariables root_variables() {
  Reader reader;
  RootVariables found;
  reader.read("NCCL_COMM_ID", found.comm_id);
  reader.read("TUTTI_SECRET", found.secret);
  reader.read("NCCL_SOCKET_IFNAME", found.socket_interfaces);
  reader.read_family("NCCL_SOCKET_FAMILY", found.socket_family);
  reader.read_seconds("TUTTI_HEARTBEAT_TIMEOUT_S", found.heartbeat_timeout_s);
  return found;
}

const char* launcher_variable(const char* name) { return std::getenv(name); }

}  // namespace tutti
