// The configuration is read once per process, so every case forks a child, sets its environment and looks at it there.
// An executable of its own: no other test may have read the configuration before.
#include "base/config.h"
#include "base/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

using Environment = std::map<std::string, std::string>;

/// What the child wrote to stderr and what `report` returned there.
struct Seen {
  std::string log;
  std::string report;
};

std::string read_all(int fd) {
  std::string text;
  char part[4096];
  for (ssize_t got = 0; (got = read(fd, part, sizeof(part))) > 0;) text.append(part, static_cast<std::size_t>(got));
  close(fd);
  return text;
}

Seen in_child(const Environment& environment, const std::function<std::string(const tutti::Config&)>& report) {
  int log[2];
  int answer[2];
  REQUIRE(pipe(log) == 0);
  REQUIRE(pipe(answer) == 0);
  const pid_t child = fork();
  if (child == 0) {
    clearenv();
    for (const auto& [key, value] : environment) setenv(key.c_str(), value.c_str(), 1);
    dup2(log[1], STDERR_FILENO);
    const std::string text = report(tutti::config());
    _exit(write(answer[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(log[1]);
  close(answer[1]);
  Seen seen{read_all(log[0]), read_all(answer[0])};
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  return seen;
}

std::string everything(const tutti::Config& c) {
  return fmt::format(
      "{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", static_cast<int>(c.log_level), c.log_file,
      c.algorithm, c.device, c.host_id, c.timeout_s, c.reproducible, c.blocking, c.blocking_set, c.shm_disable,
      c.single_copy, c.slot_bytes, c.single_copy_min_bytes, c.simd, static_cast<int>(c.protocols), c.p2p_disable,
      c.wide_wire, c.tuning_file, c.stream_min_bytes, c.heartbeat_timeout_s, c.slot_stores, c.cuda_mpi, c.graph_mixing);
}

constexpr const char* kDefaults = "0|||||1800|false|true|false|false|true|0|0||0|false|false||0|10||0|true";

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("without variables, or with empty ones, everything has its default", "[config]") {
  CHECK(in_child({}, everything).report == kDefaults);
  const Seen empty = in_child({{"NCCL_DEBUG", ""}, {"TUTTI_TIMEOUT_S", ""}, {"TUTTI_SIMD", ""}}, everything);
  CHECK(empty.report == kDefaults);
  CHECK(empty.log.empty());
}

TEST_CASE("every variable arrives in its field", "[config]") {
  const Seen seen = in_child({{"NCCL_DEBUG", "Info"},
                              {"NCCL_DEBUG_FILE", "/dev/null"},
                              {"NCCL_ALGO", "ring;allreduce:^tree"},
                              {"TUTTI_DEVICE", "HOST"},
                              {"NCCL_HOSTID", "box-7"},
                              {"TUTTI_TIMEOUT_S", "2.5"},
                              {"TUTTI_HEARTBEAT_TIMEOUT_S", "7.5"},
                              {"TUTTI_REPRODUCIBLE", "1"},
                              {"NCCL_COMM_BLOCKING", "0"},
                              {"NCCL_SHM_DISABLE", "1"},
                              {"TUTTI_SINGLE_COPY", "0"},
                              {"TUTTI_SLOT_BYTES", "64K"},
                              {"TUTTI_SINGLE_COPY_MIN_BYTES", "12345"},
                              {"TUTTI_STREAM_MIN_BYTES", "3M"},
                              {"TUTTI_SLOT_STORES", "Streamed"},
                              {"TUTTI_CUDA_MPI", "Force"},
                              {"NCCL_PROTO", "ll"},
                              {"NCCL_P2P_DISABLE", "1"},
                              {"NCCL_GRAPH_MIXING_SUPPORT", "0"},
                              {"TUTTI_SIMD", "avx2"},
                              {"TUTTI_WIRE", "Float32"},
                              {"TUTTI_TUNING_FILE", "/etc/tuning"}},
                             everything);
  CHECK(seen.report ==
        "3|/dev/null|ring;allreduce:^tree|host|box-7|2.5|true|false|true|true|false|65536|12345|avx2|1|true|true|/"
        "etc/tuning|3145728|7.5|streamed|force|false");
  CHECK(seen.log.empty());
}

TEST_CASE("NCCL_P2P_LEVEL has names and the numbers that were before them", "[config]") {
  const std::vector<std::pair<std::string, std::string>> levels = {{"LOC", "LOC 1"}, {"nvl", "NVL 0"},
                                                                   {"NVB", "NVL 0"}, {"PIX", "PIX 0"},
                                                                   {"PXB", "PXB 0"}, {"PHB", "PHB 0"},
                                                                   {"SYS", "SYS 0"}, {"0", "LOC 1"},
                                                                   {"1", "PIX 0"},   {"2", "PXB 0"},
                                                                   {"3", "PHB 0"},   {"4", "SYS 0"},
                                                                   {"17", "SYS 0"},  {"", "SYS 0"},
                                                                   {"00", "LOC 1"},  {"01", "PIX 0"},
                                                                   {"0x2", "PXB 0"}, {"03", "PHB 0"},
                                                                   {"5", "SYS 0"},   {"6", "SYS 0"},
                                                                   {"010", "SYS 0"}, {"99999999999999999999", "SYS 0"}};
  const auto report = [](const tutti::Config& c) {
    return fmt::format("{} {:d}", name_of(c.p2p_level), c.p2p_disable);
  };
  for (const auto& [value, wanted] : levels) {
    CAPTURE(value);
    CHECK(in_child({{"NCCL_P2P_LEVEL", value}}, report).report == wanted);
  }
  const Seen seen = in_child({{"NCCL_P2P_LEVEL", "near"}, {"NCCL_DEBUG", "WARN"}}, report);
  CHECK(seen.report == "SYS 0");
  CHECK_THAT(seen.log, Catch::Contains("NCCL_P2P_LEVEL=near is ignored: accepted is LOC (no peer access), NVL"));
}

TEST_CASE("a bad value is told once, with key, value and what is accepted, and the default is used", "[config]") {
  const Environment bad_values = {
      {"TUTTI_DEVICE", "gpu"},          {"TUTTI_TIMEOUT_S", "10 s"},     {"TUTTI_REPRODUCIBLE", "yes"},
      {"NCCL_COMM_BLOCKING", "2"},      {"NCCL_SHM_DISABLE", "on"},      {"TUTTI_SINGLE_COPY", "-1"},
      {"TUTTI_SLOT_BYTES", "65"},       {"TUTTI_SIMD", "sse"},           {"TUTTI_SINGLE_COPY_MIN_BYTES", "1e6"},
      {"NCCL_PROTO", "LL,Fast"},        {"NCCL_P2P_DISABLE", "2"},       {"TUTTI_WIRE", "float64"},
      {"TUTTI_STREAM_MIN_BYTES", "-1"}, {"TUTTI_CARRY_BYTES", "8KB"},    {"TUTTI_HEARTBEAT_TIMEOUT_S", "x"},
      {"NCCL_SOCKET_NTHREADS", "0"},    {"NCCL_NSOCKS_PERTHREAD", "17"}, {"TUTTI_SLOT_STORES", "fast"},
      {"NCCL_P2P_LEVEL", "-1"},
  };
  Environment environment = bad_values;
  environment["NCCL_DEBUG"] = "WARN";
  const Seen seen = in_child(environment, [](const tutti::Config&) { return everything(tutti::config()); });
  CHECK(seen.report == "2" + std::string(kDefaults).substr(1));
  for (const auto& [key, value] : bad_values) {
    CHECK(count_of(seen.log, key + "=" + value + " is ignored: accepted is ") == 1);
  }
  CHECK(count_of(seen.log, "\n") == bad_values.size());
}

TEST_CASE("numbers are read strictly", "[config]") {
  const auto timeout = [](const tutti::Config& c) { return fmt::format("{}", c.timeout_s); };
  CHECK(in_child({{"TUTTI_TIMEOUT_S", "0"}}, timeout).report == "0");
  for (const char* bad : {"-1", "nan", "inf", "1,5", " 3", "3 ", "0x10", "1e999"}) {
    CHECK(in_child({{"TUTTI_TIMEOUT_S", bad}}, timeout).report == "1800");
  }
  const auto slots = [](const tutti::Config& c) { return fmt::format("{}", c.slot_bytes); };
  CHECK(in_child({{"TUTTI_SLOT_BYTES", "64m"}}, slots).report == "67108864");
  for (const char* bad :
       {"67108928", "1G", "-64", "64KB", "K", "64 K", "18446744073709551616", "18446744073709551552", "+64"}) {
    CHECK(in_child({{"TUTTI_SLOT_BYTES", bad}}, slots).report == "0");
  }
  const auto staging = [](const tutti::Config& c) { return fmt::format("{}", c.staging_bytes); };
  CHECK(in_child({{"TUTTI_STAGING_BYTES", "8K"}}, staging).report == "8192");
  CHECK(in_child({{"TUTTI_STAGING_BYTES", "5000"}}, staging).report == "0");
}

TEST_CASE("NCCL_PROTO leaves lines only, none, or both", "[config]") {
  using tutti::Protocols;
  const auto left = [](const char* list) {
    const auto report = [](const tutti::Config& c) { return fmt::format("{}", static_cast<int>(c.protocols)); };
    return static_cast<Protocols>(std::stoi(in_child({{"NCCL_PROTO", list}}, report).report));
  };
  for (const char* only : {"LL", "ll128", "LL,LL128", "^Simple", "^LL128,Simple"})
    CHECK(left(only) == Protocols::kLines);
  for (const char* none : {"Simple", "^LL,LL128"}) CHECK(left(none) == Protocols::kNoLines);
  for (const char* both : {"Simple,LL", "^LL", "LL,Simple,LL128", "MEDIUM"}) CHECK(left(both) == Protocols::kAny);
}

TEST_CASE("a bad NCCL_DEBUG is told although no level was chosen", "[config]") {
  const Seen seen = in_child({{"NCCL_DEBUG", "LOUD"}}, [](const tutti::Config&) { return std::string(); });
  CHECK_THAT(seen.log, Catch::Contains("NCCL_DEBUG=LOUD") && Catch::Contains("VERSION"));
}

TEST_CASE("a log line has host, process, thread, level and text, and levels filter", "[log]") {
  const Seen seen = in_child({{"NCCL_DEBUG", "WARN"}}, [](const tutti::Config&) {
    tutti::log_warn("tile {} of {}", 3, 4);
    tutti::log_info("not shown");
    return fmt::format(":{0}:{0} [WARN] Tutti tile 3 of 4\n", getpid());
  });
  CHECK_THAT(seen.log, Catch::EndsWith(seen.report));
  CHECK(count_of(seen.log, "\n") == 1);
  CHECK(in_child({}, [](const tutti::Config&) {
          tutti::log_warn("silent");
          return std::string();
        }).log.empty());
}

TEST_CASE("NCCL_DEBUG_FILE: %h and %p are filled in, and a file that cannot be opened falls back to stderr", "[log]") {
  char directory[] = "/tmp/tutti-log-XXXXXX";
  REQUIRE(mkdtemp(directory) != nullptr);
  const std::string pattern = std::string(directory) + "/%h.%p%%.log";
  const Seen seen = in_child({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_FILE", pattern}}, [&](const tutti::Config&) {
    tutti::log_info("first");
    tutti::log_info("second");
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    host[strcspn(host, ".")] = '\0';
    return fmt::format("{}/{}.{}%.log", directory, host, getpid());
  });
  CHECK(seen.log.empty());
  const int file = open(seen.report.c_str(), O_RDONLY);
  REQUIRE(file >= 0);
  const std::string text = read_all(file);
  CHECK_THAT(text, Catch::Contains("Tutti first\n") && Catch::EndsWith("Tutti second\n"));
  unlink(seen.report.c_str());
  rmdir(directory);

  const Seen fallback = in_child({{"NCCL_DEBUG", "WARN"}, {"NCCL_DEBUG_FILE", "/nowhere/x"}}, [](const tutti::Config&) {
    tutti::log_warn("kept");
    tutti::log_warn("kept");
    return std::string();
  });
  CHECK(count_of(fallback.log, "Tutti kept\n") == 2);
  CHECK(count_of(fallback.log, "NCCL_DEBUG_FILE=/nowhere/x") == 1);
}

TEST_CASE("NCCL_DEBUG_SUBSYS chooses what INFO lines are about", "[log]") {
  const auto lines = [](const char* list) {
    return in_child({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", list}},
                    [](const tutti::Config&) {
                      tutti::log_info("about init");
                      tutti::log_info(tutti::LogSubject::kGraph, "about graph");
                      tutti::log_info(tutti::LogSubject::kTuning, "about tuning");
                      tutti::log_warn("a warning");
                      return std::string();
                    })
        .log;
  };
  for (const auto& [list, shown] : std::map<std::string, std::string>{{"", "igt"},
                                                                      {"ALL", "igt"},
                                                                      {"init", "i"},
                                                                      {"GRAPH,Tuning", "gt"},
                                                                      {"^GRAPH", "it"},
                                                                      {"^INIT,TUNING", "g"},
                                                                      {"COLL,NET", ""},
                                                                      {"GRAPHS", "igt"}}) {
    INFO(list);
    const std::string log = lines(list.c_str());
    CHECK(count_of(log, "about init") == (shown.find('i') != std::string::npos));
    CHECK(count_of(log, "about graph") == (shown.find('g') != std::string::npos));
    CHECK(count_of(log, "about tuning") == (shown.find('t') != std::string::npos));
    CHECK(count_of(log, "a warning") == 1);
    CHECK(count_of(log, "NCCL_DEBUG_SUBSYS=GRAPHS is ignored: accepted is ") == (list == "GRAPHS"));
  }
}

TEST_CASE("the variables of the machine arrive, with paths made absolute", "[config]") {
  const auto machine = [](const tutti::Config& c) {
    return fmt::format("{}|{}|{}|{}", c.topology_file, c.topology_dump_file, c.topology_dump_rank, c.topology_library);
  };
  CHECK(in_child({}, machine).report == "||0|");
  const Seen seen = in_child({{"NCCL_TOPO_FILE", "/a.xml"},
                              {"NCCL_TOPO_DUMP_FILE", "b.xml"},
                              {"NCCL_TOPO_DUMP_FILE_RANK", "3"},
                              {"TUTTI_TOPOLOGY_LIBRARY", "none"}},
                             machine);
  CHECK_THAT(seen.report, Catch::StartsWith("/a.xml|/") && Catch::EndsWith("/b.xml|3|none"));
  for (const char* bad : {"-1", "two", "1.5"}) {
    const Seen refused = in_child({{"NCCL_DEBUG", "WARN"}, {"NCCL_TOPO_DUMP_FILE_RANK", bad}}, machine);
    CHECK(refused.report == "||0|");
    CHECK(count_of(refused.log, "NCCL_TOPO_DUMP_FILE_RANK=") == 1);
  }
}

namespace {

/// A folder with files, gone at the end.
class Folder {
 public:
  Folder() { REQUIRE(mkdtemp(path_) != nullptr); }
  ~Folder() {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string write(const std::string& name, const std::string& text) {
    files_.push_back(path_ + ("/" + name));
    std::ofstream(files_.back()) << text;
    return files_.back();
  }
  std::string path() const { return path_; }

 private:
  char path_[32] = "/tmp/tutti-config-XXXXXX";
  std::vector<std::string> files_;
};

}  // namespace

TEST_CASE("NCCL's configuration files stand for variables that the environment does not have", "[config]") {
  Folder folder;
  const auto values = [](const tutti::Config& c) {
    return fmt::format("{}|{}|{}|{}", c.algorithm, c.timeout_s, c.host_id, tutti::root_variables().socket_interfaces);
  };
  const std::string own = folder.write("own.conf",
                                       "# a comment\n\nNCCL_ALGO = ring \r\nNCCL_HOSTID=a=b\nTUTTI_TIMEOUT_S=7\n"
                                       "NCCL_HOSTID=later\nNCCL_SOCKET_IFNAME=eth");
  CHECK(in_child({{"NCCL_CONF_FILE", own}}, values).report == "ring|7|a=b|eth");
  CHECK(in_child({{"NCCL_CONF_FILE", own}, {"NCCL_ALGO", "tree"}, {"TUTTI_TIMEOUT_S", ""}}, values).report ==
        "tree|7|a=b|eth");
  folder.write(".nccl.conf", "NCCL_ALGO=oneshot\n");
  CHECK(in_child({{"HOME", folder.path()}}, values).report == "oneshot|1800||");
  CHECK(in_child({{"HOME", folder.path()}, {"NCCL_CONF_FILE", own}}, values).report == "ring|7|a=b|eth");
  CHECK(in_child({{"NCCL_CONF_FILE", folder.write("empty.conf", "")}}, values).report == "|1800||");

  const Seen missing = in_child({{"NCCL_DEBUG", "WARN"}, {"NCCL_CONF_FILE", folder.path() + "/none"}}, values);
  CHECK(missing.report == "|1800||");
  CHECK(count_of(missing.log, "/none is ignored: No such file") == 1);
  const Seen not_a_file = in_child({{"NCCL_DEBUG", "WARN"}, {"NCCL_CONF_FILE", folder.path()}}, values);
  CHECK(count_of(not_a_file.log, " is ignored: not a regular file") == 1);
  const std::string bad = folder.write("bad.conf", "NCCL_ALGO=ring\nno value\n=5\nTUTTI_TIMEOUT_S=soon\n");
  const Seen told = in_child({{"NCCL_DEBUG", "WARN"}, {"NCCL_CONF_FILE", bad}}, values);
  CHECK(told.report == "ring|1800||");
  CHECK(count_of(told.log, "bad.conf, line 2: \"no value\" is ignored: expected NAME=value") == 1);
  CHECK(count_of(told.log, "bad.conf, line 3: ") == 1);
  CHECK(count_of(told.log, "TUTTI_TIMEOUT_S=soon is ignored") == 1);
}

TEST_CASE("only files of reasonable length are read for the configuration", "[config]") {
  Folder folder;
  const auto algorithm = [](const tutti::Config& c) {
    alarm(20);  // for the log's
    tutti::log_warn("a line");
    return c.algorithm;
  };
  const auto log_of = [&](const std::string& file) {
    return in_child({{"NCCL_DEBUG", "WARN"}, {"NCCL_CONF_FILE", file}}, algorithm).log;
  };
  const std::string fifo = folder.write("fifo", "");
  REQUIRE(unlink(fifo.c_str()) == 0);
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(count_of(log_of(fifo), "fifo is ignored: not a regular file") == 1);
  CHECK(count_of(log_of("/dev/zero"), "/dev/zero is ignored: not a regular file") == 1);
  const std::string large = folder.write("large", "NCCL_ALGO=ring\n");
  REQUIRE(truncate(large.c_str(), off_t{3} << 30) == 0);
  CHECK(count_of(log_of(large), "large is ignored: the file is larger than 1048576 bytes") == 1);

  // That of the home folder: as the other if it is there.
  const Environment at_home = {{"NCCL_DEBUG", "WARN"}, {"HOME", folder.path()}};
  CHECK(count_of(in_child(at_home, algorithm).log, "ignored") == 0);
  REQUIRE(rename(large.c_str(), folder.write(".nccl.conf", "").c_str()) == 0);
  CHECK(count_of(in_child(at_home, algorithm).log, ".nccl.conf is ignored: the file is larger") == 1);

  const std::string marked = folder.write("marked", "\xef\xbb\xbfNCCL_ALGO=ring\n");
  CHECK(in_child({{"NCCL_CONF_FILE", marked}}, algorithm).report == "ring");

  const Seen to_fifo = in_child({{"NCCL_DEBUG", "WARN"}, {"NCCL_DEBUG_FILE", fifo}}, algorithm);
  CHECK(count_of(to_fifo.log, "fifo cannot be opened") == 1);
  CHECK(count_of(to_fifo.log, "a line") == 1);
  const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  CHECK(in_child({{"NCCL_DEBUG", "WARN"}, {"NCCL_DEBUG_FILE", fifo}}, algorithm).log.empty());
  CHECK(count_of(read_all(reader), "a line") == 1);
}

TEST_CASE("a family of addresses is taken in NCCL's spelling, and a wrong one is told", "[config]") {
  const auto family = [](const tutti::Config&) { return "family " + tutti::root_variables().socket_family; };
  CHECK(in_child({{"NCCL_SOCKET_FAMILY", "AF_INET"}}, family).report == "family af_inet");
  CHECK(in_child({{"NCCL_SOCKET_FAMILY", "AF_INET6"}}, family).report == "family af_inet6");
  const Seen wrong = in_child({{"NCCL_DEBUG", "INFO"}, {"NCCL_SOCKET_FAMILY", "AF_UNIX"}}, family);
  CHECK(wrong.report == "family ");
  CHECK(count_of(wrong.log, "NCCL_SOCKET_FAMILY=AF_UNIX is ignored: accepted is one of af_inet, af_inet6") == 1);
  CHECK(count_of(wrong.log, "has no effect here") == 0);
}

TEST_CASE("a variable of NCCL's or Tutti's without effect is said so once, at INFO", "[config]") {
  Folder folder;
  const std::string file = folder.write("own.conf", "NCCL_BUFFSIZE=4194304\n");
  const Environment environment{{"NCCL_DEBUG", "INFO"},      {"NCCL_IB_HCA", "mlx5"},   {"NCCL_CONF_FILE", file},
                                {"NCCL_SOCKET_IFNAME", "x"}, {"NCCL_P2P_DISABLE", "0"}, {"OTHER", "1"},
                                {"TUTTI_TIMEOUTS", "4"},     {"TUTTI_TIMEOUT_S", "4"},  {"TUTTI_SECRET", "x"},
                                {"TUTTI_RENDEZVOUS", "x"}};
  const auto twice = [](const tutti::Config&) { return std::to_string(tutti::config().timeout_s); };
  const Seen seen = in_child(environment, twice);
  CHECK(count_of(seen.log, "has no effect here") == 3);
  CHECK(count_of(seen.log, "TUTTI_TIMEOUTS is set, and has no effect here") == 1);
  CHECK(count_of(seen.log, "NCCL_IB_HCA is set, and has no effect here") == 1);
  CHECK(count_of(seen.log, "NCCL_BUFFSIZE is set, and has no effect here") == 1);
  Environment quiet = environment;
  quiet["NCCL_DEBUG"] = "WARN";
  CHECK(count_of(in_child(quiet, twice).log, "has no effect") == 0);
}
