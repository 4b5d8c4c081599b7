#include "options.h"

#include "base/command_line.h"
#include "report_files.h"

#include <tutti/tutti.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <limits>

namespace tutti::bench {
namespace {

constexpr const char* kFooter = R"(
Examples
  tutti-perf all_reduce                                 as many ranks as cores, 8 bytes to 32 MiB
  tutti-perf all_reduce --ranks 4 -b 8 -e 256M -f 4     four processes
  tutti-perf all_gather --ranks 4 --threads -d half     four threads of one process
  tutti-perf reduce --ranks 3 -o all -d all -r -1 -e 64K
  tutti-perf all_reduce --ranks 4 --json out.json --plot out.svg
  tutti-perf all_reduce --ranks 4 -b 1M -e 1M --explain
  tutti-perf all_reduce --ranks 4 -b 1M -e 1M --explain > plan.txt; tutti-perf --plan plan.txt
  tutti-perf --tune tuning.txt --ranks 2                then TUTTI_TUNING_FILE=tuning.txt for programs of 2 ranks
  tutti-perf --tune tuning.txt --ranks 4 all_reduce all_gather -e 4M --tune-minutes 1
  tutti-perf all_reduce --device cuda -e 256M           a process for each GPU
  tutti-perf all_reduce --device cuda --ranks-per-gpu 4 --graph 20
  tutti-perf all_reduce --device cuda --against nccl    beside NVIDIA's library, in turn
  mpirun -np 4 tutti-perf all_reduce                    also srun, torchrun --no-python
  mpirun -np 4 -H box-1:2,box-2:2 tutti-perf all_reduce   by MPI; also --net tcp

A schedule given by --plan is in the text form of docs/schedule.md; what precedes its first line is skipped, so that what
--explain prints for one size can be edited and run. The library proves it right before anything runs, or says which line,
or which rank and step, is wrong. A file for two ranks that exchange their inputs:

  schedule exchange all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 0
  rank 0 lane 0
    in[0.0] -> send 1
    in[0.0] + recv 1 -> out[0.0] finish
  rank 1 lane 0
    in[0.0] -> send 0
    recv 0 + in[0.0] -> out[0.0] finish

--tune times every way in which the library could run each call, in and out of place, on private and on shared buffers, and
writes a file with those that are at least 5% faster than what it would choose by itself (docs/tuning.md). Run it on a
machine that does nothing else, with the ranks started as the program will start them.

Started by mpirun, srun or torchrun, a process is one rank of their job. Rank 0 hands the communicator's id to the
others at a Unix socket named after the user and the job (Open MPI's or Slurm's job id; torchrun's run id, MASTER_PORT
and restart count). MASTER_PORT itself is not used: torchrun's agent may own it. TUTTI_RENDEZVOUS=file:/path names
another meeting place, TUTTI_RENDEZVOUS_TIMEOUT_S (120) limits the wait. Ranks on several hosts meet at MASTER_ADDR, or at
TUTTI_RENDEZVOUS=tcp:host:port where it is set, or by MPI (--net).

Size is that of the larger of a rank's two buffers, at least one element per rank. Time is that of all iterations over
their number; algbw = size/time; busbw = algbw times a factor that makes collectives and rank counts comparable.
all_to_all and sendrecv have no in-place form. A rank holds two buffers of the largest size, and nothing runs where those
of a host's ranks would take more memory than there is.

--against: both libraries have a communicator of the same ranks, the same buffers and the same stream, and are timed by turns, two times
each, per size and form. Columns: the other library's time, and the ratio of its time to this one's (above 1: this one is
faster). NCCL_ variables hold for both, but for NCCL_COMM_ID; where ranks share a GPU, NVIDIA's library gets an NCCL_HOSTID for each
of them, or it would refuse them. On host memory the other one has to be a Tutti, such as one of another commit.
Exit code: 0 fine, 1 wrong values or a failed run, 2 a bad command line; Ctrl-C, SIGTERM and SIGHUP end it by that signal.)";

constexpr std::size_t kSizesMost = std::size_t{1} << 20;

/// Each is several nodes, which a driver keeps and a GPU holds: more of them take minutes and gigabytes.
constexpr int kGraphCallsMost = 1 << 16;
/// So that sizes times ranks are numbers, too.
constexpr std::uint64_t kLargestSize = std::numeric_limits<std::uint64_t>::max() >> 8;

const std::string kNames =
    "all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather, scatter, sendrecv";

/// Names as typed, before they are looked up.
struct Words {
  std::vector<std::string> collectives;
  std::string type = "float", reduction = "sum", memory = "private", device = "host";
  std::string min_bytes, max_bytes, step_bytes;
  std::string plan, against;
  std::optional<int> registered, root;
  int average = 1, blocking = 0, cpu_time = 0;
  bool version = false;
};

void declare(CLI::App& app, Words& words, Options& options) {
  app.add_option("collective", words.collectives, "one or several of: " + kNames + "; or all");
  app.add_option("--ranks", options.ranks, "ranks to start (default: one per core, at least 2; on GPUs one for each)")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--threads", options.threads, "ranks are threads of one process (default: processes)");
  app.add_option("-b,--minbytes", words.min_bytes, "smallest size: 8, 4K, 256M, 1G (default 8)");
  app.add_option("-e,--maxbytes", words.max_bytes, "largest size (default 32M)");
  app.add_option("-i,--stepbytes", words.step_bytes, "add this to get the next size (default: multiply by -f)");
  app.add_option("-f,--stepfactor", options.step_factor, "multiply by this to get the next size (default 4)")
      ->check(CLI::Range(std::size_t{2}, std::size_t{1} << 30));
  app.add_option("-n,--iters", options.iterations,
                 "timed iterations per size (default: 500 to 32 KiB, fewer of longer ones, 20 from 1 MiB)")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("-w,--warmup_iters", options.warmup, "iterations before them (default: a tenth as many)")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("-c,--check", options.check, "calls, each by itself, whose result is checked; 0: none (default 1)")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("-o,--op", words.reduction, "sum, prod, max, min, avg, mulsum or all (default sum)");
  app.add_option("-d,--datatype", words.type,
                 "int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2 or all "
                 "(default float)");
  app.add_option("-r,--root", words.root, "root of rooted collectives; -1: every rank in turn (default 0)")
      ->check(CLI::Range(-1, 1023));
  app.add_option("-a,--average", words.average, "time shown: 0 rank 0's, 1 mean, 2 min, 3 max over ranks (default 1)")
      ->check(CLI::Range(0, 3));
  app.add_option("-z,--blocking", words.blocking, "1: wait for the stream after every call (default 0)")
      ->check(CLI::Range(0, 1));
  app.add_option("-C,--report_cputime", words.cpu_time,
                 "1: time in the calls alone, without waiting for the stream (default 0)")
      ->check(CLI::Range(0, 1));
  app.add_option("-m,--agg_iters", options.aggregate, "calls per group, times are per call (default 1)")
      ->check(CLI::Range(1, 4096));
  app.add_option("-T,--timeout", options.timeout_s, "abort after so many seconds at one size (default 0: never)")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("-R,--local_register", words.registered, "1: register buffers (default: shared ones only)")
      ->check(CLI::Range(0, 1));
  CLI::Option* device = app.add_option("--device", words.device,
                                       "host, or cuda: buffers on GPUs, one for each rank of a host in turn (default "
                                       "host)");
  device->check(CLI::IsMember({"host", "cuda"}));
  app.add_option("--ranks-per-gpu", options.ranks_per_gpu,
                 "on GPUs: so many ranks next to each other share one (default 1)")
      ->check(CLI::Range(1, 16));
  app.add_option("--graph", options.graph,
                 "on GPUs: capture so many calls into a graph, and time its launches (default 0)")
      ->check(CLI::Range(0, 4096));
  app.add_flag("!--no-bind", options.bind,
               "ranks that tutti-perf starts go where the system puts them (default: a processor each, "
               "where there are as many)");
  app.add_option("--memory", words.memory,
                 "private (malloc; cuMemAlloc) or shared (tuttiMemAlloc; ncclMemAlloc) buffers (default private)");
  app.add_flag("--stream", options.stream, "calls go to a host stream (default: the caller's thread)");
  app.add_option(
         "--net", options.network,
         "between hosts: tcp, mpi (initialises MPI; under mpirun or srun), auto (default: what TUTTI_NET says; under "
         "Open MPI's mpirun, where no variable says where the hosts' ranks meet, as mpi)")
      ->check(CLI::IsMember({"auto", "tcp", "mpi"}));
  app.add_flag("--percentiles", options.percentiles, "time every iteration too: columns p50 and p99");
  app.add_option("--json", options.json_file,
                 "write the rows to this file (-: standard output; the table then goes to standard error)");
  app.add_option("--plot", options.plot_file, "draw bus bandwidth and time over size: an SVG file");
  app.add_flag(
      "--explain", options.explain,
      "print the plan of every size, in words and as a schedule, and its certificate, and end; of processes on "
      "host memory for private buffers");
  app.add_option(
      "--plan", words.plan,
      "run the schedule in this file (-: standard input) instead of the planner's choice; collective, --ranks "
      "and -r then default to the schedule's");
  CLI::Option* tune = app.add_option(
      "--tune", options.tune_file,
      "measure what is fastest at each size and write it to this file, for "
      "TUTTI_TUNING_FILE (-: standard output; the table then goes to standard error); sizes then go from 1K "
      "to 64M, and no collective means all");
  app.add_option("--tune-minutes", options.tune_minutes, "time for that (default 5)")
      ->needs(tune)
      ->check(number(0.001, 10000));
  for (const char* other : {"-n", "-w", "-c", "-r", "-a", "-z", "-C", "-m", "-T", "-R", "--memory", "--stream",
                            "--percentiles", "--json", "--plot", "--explain", "--plan", "--device"})
    tune->excludes(app.get_option(other));
  CLI::Option* against = app.add_option(
      "--against", words.against,
      "measure another NCCL in turn, in the same processes: its libnccl.so.2, or nccl for the one that is installed");
  for (const char* other : {"--threads", "--memory", "-R", "--stream", "--explain", "--plan", "--tune"})
    against->excludes(app.get_option(other));
  app.add_flag("--version", words.version, "print the library's version and end");
  app.footer(kFooter);
}

/// Looks a name up, or takes them all.
template <class Row, class Find>
std::string choose(const std::string& name, std::span<const Row> all, Find find, const char* what,
                   std::vector<const Row*>& chosen) {
  if (name == "all") {
    for (const Row& row : all) chosen.push_back(&row);
    return {};
  }
  if (const Row* row = find(name)) {
    chosen.push_back(row);
    return {};
  }
  return fmt::format("no {} is called \"{}\"; --help lists them", what, name);
}

std::string resolve_sizes(const Words& words, Options& options) {
  const auto read = [](const std::string& text, const char* flag, std::size_t& size) -> std::string {
    if (text.empty()) return {};
    const auto value = size_from(text);
    if (!value || *value > kLargestSize)
      return fmt::format("{} \"{}\" is not a size: write 8, 4K, 256M or 1G", flag, text);
    size = *value;
    return {};
  };
  for (std::string problem :
       {read(words.min_bytes, "-b", options.min_bytes), read(words.max_bytes, "-e", options.max_bytes),
        read(words.step_bytes, "-i", options.step_bytes)})
    if (!problem.empty()) return problem;
  if (!words.step_bytes.empty() && options.step_bytes == 0) return "-i 0 would never reach -e";
  if (words.max_bytes.empty()) options.max_bytes = std::max(options.max_bytes, options.min_bytes);
  if (words.min_bytes.empty()) options.min_bytes = std::min(options.max_bytes, options.min_bytes);
  if (options.max_bytes < options.min_bytes)
    return fmt::format("-e {} is less than -b {}", words.max_bytes, words.min_bytes);
  if (options.step_bytes > 0 && (options.max_bytes - options.min_bytes) / options.step_bytes >= kSizesMost)
    return fmt::format("-i {} makes more than {} sizes from -b to -e; take a longer step", words.step_bytes,
                       kSizesMost);
  return {};
}

/// The plan says what it is for: what the command line leaves open comes from there, what it says must fit.
std::string resolve_plan(const Words& words, Options& options) {
  options.root = words.root.value_or(0);
  if (words.plan.empty()) return {};
  PlanFile plan;
  if (std::string problem = read_plan_file(words.plan, plan); !problem.empty()) return problem;
  if (options.collectives.empty()) options.collectives = {plan.collective};
  for (const Collective* collective : options.collectives)
    if (collective != plan.collective)
      return fmt::format("--plan {} is for {}, not for {}", plan.name, plan.collective->name, collective->name);
  if (options.ranks.value_or(plan.ranks) != plan.ranks)
    return fmt::format("--plan {} is for {} ranks, --ranks says {}", plan.name, plan.ranks, *options.ranks);
  options.ranks = plan.ranks;
  if (plan.root) {
    if (words.root.value_or(*plan.root) != *plan.root)
      return fmt::format("--plan {} is for root {}, -r says {}", plan.name, *plan.root, *words.root);
    options.root = *plan.root;
  }
  options.plan = std::move(plan);
  return {};
}

/// Other defaults, and one type and operation only.
std::string resolve_tune(const Words& words, Options& options) {
  if (options.tune_file.empty()) return {};
  options.min_bytes = 1 << 10;
  options.max_bytes = 64u << 20;
  if (words.type == "all") return "--tune takes one data type";
  if (words.reduction == "all" || words.reduction == "mulsum") return "--tune takes one operation, and not mulsum";
  if (words.collectives.empty())
    for (const Collective& collective : collectives()) options.collectives.push_back(&collective);
  return {};
}

std::string resolve_against(const Words& words, Options& options) {
  if (words.against.empty()) return {};
  Result<std::string> file = find_other(words.against);
  if (!file.ok()) return file.error().message;
  options.against = std::move(file).value();
  return {};
}

/// Empty, or what is wrong.
std::string resolve(const Words& words, Options& options) {
  if (words.collectives.empty() && words.plan.empty() && options.tune_file.empty())
    return "which collective? " + kNames + " or all";
  for (const std::string& name : words.collectives)
    if (std::string problem = choose(name, collectives(), collective_named, "collective", options.collectives);
        !problem.empty())
      return problem;
  for (auto one = options.collectives.begin(); one != options.collectives.end(); ++one)
    if (std::find(options.collectives.begin(), one, *one) != one)
      return fmt::format("{} is named twice; once is enough, and \"all\" holds every one", (*one)->name);
  if (std::string problem = choose(words.type, element_types(), element_type_named, "data type", options.types);
      !problem.empty())
    return problem;
  if (std::string problem = choose(words.reduction, reductions(), reduction_named, "operation", options.reductions);
      !problem.empty())
    return problem;
  if (options.explain && !(options.json_file.empty() && options.plot_file.empty()))
    return "--explain prints plans and measures nothing, and --json and --plot are for what was measured: leave out "
           "one or the other";
  if (options.explain && words.memory == "shared" && words.device == "host" && !options.threads)
    return "--explain prints the plan for private buffers, and in a line what shared ones go by: leave out --memory";
  if (options.plot_file == "-") return "--plot -: the picture goes to a file; name one";
  if (same_file(options.json_file, options.plot_file))
    return fmt::format("--plot {}: is --json's file; name another", options.plot_file);
  if (words.memory != "private" && words.memory != "shared")
    return fmt::format("--memory \"{}\": private or shared?", words.memory);
  options.on_gpu = words.device == "cuda";
  if (!options.on_gpu && options.ranks_per_gpu > 1) return "--ranks-per-gpu is for --device cuda";
  if (!options.on_gpu && options.graph > 0) return "--graph is for --device cuda";
  if (options.graph > 0 && options.threads)
    return "--graph is for ranks that are processes: those of one process would have to be captured into one graph; "
           "leave out --threads";
  if (options.graph * options.aggregate > kGraphCallsMost)
    return fmt::format("--graph {} -m {}: {} calls in one graph; at most {}", options.graph, options.aggregate,
                       options.graph * options.aggregate, kGraphCallsMost);
  if (options.on_gpu && options.stream) return "--stream is of the host; on GPUs calls always go to a stream";
  options.memory = words.memory == "shared" ? Buffer::Kind::kShared : Buffer::Kind::kPrivate;
  options.registered = words.registered.value_or(words.memory == "shared" ? 1 : 0) == 1;
  options.average = static_cast<Average>(words.average);
  options.blocking = words.blocking == 1;
  options.cpu_time = words.cpu_time == 1;
  if (std::string problem = resolve_against(words, options); !problem.empty()) return problem;
  if (std::string problem = resolve_plan(words, options); !problem.empty()) return problem;
  if (std::string problem = resolve_tune(words, options); !problem.empty()) return problem;
  return resolve_sizes(words, options);
}

ParsedOptions refuse(std::string problem) {
  problem = problem.substr(0, problem.find('\n'));
  std::fprintf(stderr, "tutti-perf: %s\n", problem.c_str());
  return {std::nullopt, 2};
}

}  // namespace

int Options::iterations_of(std::size_t bytes) const {
  constexpr std::size_t kBytesInAll = std::size_t{16} << 20;
  const std::size_t by_size = kBytesInAll / std::max<std::size_t>(bytes, 1);
  return iterations.value_or(static_cast<int>(std::clamp<std::size_t>(by_size, kIterationsLeast, kIterationsMost)));
}

int Options::warmup_of(std::size_t bytes) const { return warmup.value_or(std::max(1, iterations_of(bytes) / 10)); }

std::vector<std::size_t> Options::sizes() const {
  std::vector<std::size_t> result;
  for (std::size_t size = min_bytes; size <= max_bytes;) {
    result.push_back(size);
    if (step_bytes > 0) {
      size += step_bytes;
    } else {
      size = std::max<std::size_t>(size, 1);
      if (size > max_bytes / step_factor) break;  // the product may be more than a size holds
      size *= step_factor;
    }
  }
  return result;
}

std::size_t Options::buffer_bytes(int ranks) const {
  return std::max<std::size_t>(sizes().back(), 8 * static_cast<std::size_t>(ranks));
}

ParsedOptions parse_options(int argc, char** argv) {
  CLI::App app{
      "Times Tutti's collectives and checks their results. Flags, columns and meaning are those of nccl-tests.",
      "tutti-perf"};
  Words words;
  Options options;
  declare(app, words, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return {std::nullopt, 0};
  } catch (const CLI::Error& problem) {
    std::fputs(mistake_text(&app, problem).c_str(), stderr);
    return {std::nullopt, 2};
  }
  if (words.version) {
    std::printf("%s\n", tuttiGetVersionString());
    return {std::nullopt, 0};
  }
  if (const CLI::Option* size = first_empty(app, {"-b", "-e", "-i"}))
    return refuse(fmt::format("{} is empty: write 8, 4K, 256M or 1G", size->get_name()));
  if (const CLI::Option* file = first_empty(app, {"--json", "--plot", "--plan", "--tune", "--against"}))
    return refuse(file->get_name() + " is empty; name a file");
  if (std::string problem = resolve(words, options); !problem.empty()) return refuse(problem);
  return {std::move(options), 0};
}

}  // namespace tutti::bench
