#include "trainer/options.h"

#include "base/command_line.h"

#include <fmt/format.h>
#include <tutti/tutti.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace tutti::trainer {
namespace {

constexpr const char* kExamples = R"(
Examples:
  tutti-train
      a language model on the licence texts of this machine, one rank per core (at least 2): about a minute
  tutti-train --text notes.txt src/ --steps 5000 --plot loss.svg
      the same on your own files, with the loss curve as a picture
  tutti-train --model mlp --images t10k-images-idx3-ubyte.gz --labels t10k-labels-idx1-ubyte.gz --ranks 4 --holdout 0.2
      a classifier of MNIST's digits on 4 ranks
  mpirun -n 4 tutti-train --model mlp --images ... --labels ...
      the launcher starts the ranks (also srun and torchrun --no-python)
  tutti-train --device cuda
      one rank for each GPU of this machine; with --ranks-per-gpu 2 two of them

How a batch is shared: of a batch of B samples on N ranks, rank r gets those from B*r/N up to B*(r+1)/N (rounded down), so shares
differ by one sample at most. Every rank sums the gradients of its share, the all-reduce adds the sums in rank order, and
one division by B makes the mean: a sample weighs the same wherever it is computed. So N ranks give the same training bits as
1 rank with --accumulate N (the held-out loss is added up in other parts), and follow 1 rank with the same batch within the
rounding of float32 sums. On GPUs a run repeats bit for bit on the same kind of GPU with the same cuBLAS (libcublas.so.13 or .12,
which it needs), and follows the host within rounding.

A run says when it begins how much memory each rank takes at least, and is refused where the ranks of a host would take more than there is.

The log has one line per step: step, loss (nats, before the update), lr, samples_per_s, step_ms, comm_ms (time in which rank 0
stood still for communication), param_hash where the replicas were compared; and, where samples were held out, a last line with
held_out_accuracy and held_out_loss (lm: held_out_bits_per_byte too).

Exit codes: 0 trained, 1 failed (a file, a lost rank, replicas that differ), 2 a wrong command line; Ctrl-C, SIGTERM and SIGHUP
end it by that signal.)";

/// One of a few words; `values` maps them to what they mean.
template <class T>
void add_choice(CLI::App& app, const char* name, T& target, const std::map<std::string, T>& values, const char* help) {
  std::string words;
  for (const auto& value : values) words += (words.empty() ? "" : "|") + value.first;
  app.add_option_function<std::string>(
         name, [&target, values](const std::string& word) { target = values.at(word); }, help)
      ->check(CLI::IsMember(values))
      ->option_text(words);
}

void add_data_options(CLI::App& app, Options& o) {
  add_choice<ModelKind>(app, "--model", o.model, {{"mlp", ModelKind::kMlp}, {"lm", ModelKind::kLm}},
                        "mlp: image classifier; lm: byte-level language model. Default: mlp with --images, else lm");
  auto* images =
      app.add_option("--images", o.images, "mlp: images, an IDX file as MNIST's, plain or .gz")->option_text("FILE");
  auto* labels = app.add_option("--labels", o.labels, "mlp: their labels, likewise")->option_text("FILE");
  images->needs(labels);
  labels->needs(images);
  app.add_option("--text", o.text, "lm: files, or directories with all below them. Default: /usr/share/common-licenses")
      ->option_text("PATH...")
      ->excludes(images);
  app.add_option("--holdout", o.holdout,
                 "share of the samples kept out of training, 0 to 0.9. Default: mlp 0.2, lm 0.1")
      ->option_text("X")
      ->check(number(0, 0.9));
  app.add_option("--context", o.context, "lm: bytes that a prediction looks back. Default: 16")
      ->option_text("N")
      ->check(number(1, 4096));
  app.add_option("--embedding", o.embedding, "lm: numbers per byte of context. Default: 24")
      ->option_text("N")
      ->check(number(1, 4096));
  app.add_option_function<std::string>(
         "--hidden",
         [&o](const std::string& sizes) {
           for (const std::string& size : parts_of(sizes)) o.hidden.push_back(std::stoul(size, nullptr, 0));
         },
         "sizes of the hidden layers: 256 or 512,128. Default: mlp 256, lm 512")
      ->option_text("N,N...")
      ->check(each_part(CLI::Range(1, 65536)));
}

void add_rank_options(CLI::App& app, Options& o) {
  app.add_option("--ranks", o.ranks,
                 "replicas to start, 1 to 64. Default: one per core, at least 2; on GPUs as many as they take")
      ->option_text("N")
      ->check(number(1, 64));
  app.add_flag("--threads", o.threads, "ranks are threads of one process, not processes")
      ->check([](const std::string& value) {
        return value == "true" ? std::string() : "takes no value; --ranks N says how many";
      });
  add_choice<DeviceKind>(app, "--device", o.device, {{"host", DeviceKind::kHost}, {"cuda", DeviceKind::kCuda}},
                         "cuda: compute on GPUs, one for each rank of a host in turn. Default: host");
  app.add_option("--ranks-per-gpu", o.ranks_per_gpu, "cuda: so many ranks next to each other share a GPU. Default: 1")
      ->option_text("N")
      ->check(number(1, 16));
  app.add_option(
         "--net", o.network,
         "between hosts: tcp, mpi (initialises MPI; under mpirun or srun), auto (default: what TUTTI_NET says; under "
         "Open MPI's mpirun, where no variable says where the hosts' ranks meet, as mpi)")
      ->option_text("NAME")
      ->check(CLI::IsMember({"auto", "tcp", "mpi"}));
  app.add_option("--bucket-mb", o.bucket_mb, "megabytes of gradient per all-reduce. Default: 1")
      ->option_text("X")
      ->check(number(0, 65536));
  app.add_option("--accumulate", o.accumulate, "parts in which each rank computes its share of a batch. Default: 1")
      ->option_text("N")
      ->check(number(1, 65536));
}

void add_training_options(CLI::App& app, Options& o) {
  auto* steps =
      app.add_option("--steps", o.steps, "updates to make. Default: lm 5000")->option_text("N")->check(number(1, 1e9));
  app.add_option("--epochs", o.epochs, "passes over the training samples instead. Default: mlp 10")
      ->option_text("N")
      ->check(number(1, 1e6))
      ->excludes(steps);
  app.add_option("--batch", o.batch, "samples per update over all ranks. Default: mlp 128, lm 256")
      ->option_text("N")
      ->check(number(1, 1 << 24));
  add_choice<OptimiserKind>(app, "--optimizer", o.optimiser,
                            {{"sgd", OptimiserKind::kSgd}, {"adam", OptimiserKind::kAdam}},
                            "sgd has momentum. Default: adam");
  app.add_option("--lr", o.lr, "learning rate. Default: 0.002 with adam, 0.1 with sgd")
      ->option_text("X")
      ->check(number(1e-12, 1e6));
  app.add_option("--momentum", o.momentum, "of sgd. Default: 0.9")->option_text("X")->check(number(0, 0.9999));
  add_choice<Schedule>(app, "--schedule", o.schedule,
                       {{"cosine", Schedule::kCosine}, {"constant", Schedule::kConstant}},
                       "cosine: the learning rate falls to a tenth along the run. Default: cosine");
  app.add_option("--seed", o.seed, "of weights, order and held-out choice. Default: 1")
      ->option_text("N")
      ->check(not_negative())
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{9'000'000'000'000'000'000}));
}

void add_report_options(CLI::App& app, Options& o) {
  app.add_option("--check-every", o.check_every, "steps between comparisons of all replicas' parameters. Default: 50")
      ->option_text("N")
      ->check(number(1, 1e9));
  app.add_option("--report-every", o.report_every, "steps between progress lines. Default: about 40 lines a run")
      ->option_text("N")
      ->check(number(1, 1e9));
  app.add_option("--log", o.log, "one JSON object per step into this file")->option_text("FILE");
  app.add_option("--plot", o.plot, "the loss curve into this SVG file")->option_text("FILE");
  app.set_version_flag("--version", tuttiGetVersionString(), "print the library's version and end");
}

/// What the model's other option values depend on can only be filled in after parsing.
void fill_defaults(const CLI::App& app, Options& o) {
  const auto given = [&](const char* name) { return app.count(name) > 0; };
  if (!given("--model")) o.model = o.images.empty() ? ModelKind::kLm : ModelKind::kMlp;
  const bool mlp = o.model == ModelKind::kMlp;
  if (!given("--holdout")) o.holdout = mlp ? 0.2 : 0.1;
  if (!given("--context")) o.context = 16;
  if (!given("--embedding")) o.embedding = 24;
  if (o.hidden.empty()) o.hidden = {mlp ? 256u : 512u};
  if (o.text.empty()) o.text = {"/usr/share/common-licenses"};
  if (!given("--bucket-mb")) o.bucket_mb = 1;
  if (!given("--steps") && !given("--epochs")) (mlp ? o.epochs : o.steps) = mlp ? 10 : 5000;
  if (!given("--batch")) o.batch = mlp ? 128 : 256;
  if (!given("--lr")) o.lr = o.optimiser == OptimiserKind::kAdam ? 0.002 : 0.1;
  if (!given("--momentum")) o.momentum = 0.9;
  if (!given("--seed")) o.seed = 1;
  if (!given("--check-every")) o.check_every = 50;
}

/// An option that the run would not look at.
void check_used(const CLI::App& app, const Options& o) {
  if (o.model == ModelKind::kMlp) {
    for (const char* name : {"--context", "--embedding"}) {
      if (app.count(name) > 0) throw CLI::ValidationError(name, "is for --model lm");
    }
  }
  if (o.optimiser != OptimiserKind::kSgd && app.count("--momentum") > 0) {
    throw CLI::ValidationError("--momentum", "is for --optimizer sgd");
  }
}

/// A directory's files are all read, those that are still to be written by the next run.
bool lies_in(const std::string& file, const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code none;
  if (file.empty() || !fs::is_directory(directory, none)) return false;
  const fs::path inner = fs::weakly_canonical(fs::absolute(file, none), none);
  const fs::path outer = fs::canonical(directory, none);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

/// Files that are written must not be those that are read.
void check_outputs(const Options& o) {
  std::vector<std::string> inputs = o.text;
  inputs.insert(inputs.end(), {o.images, o.labels});
  for (const auto& [name, output] : {std::pair("--log ", o.log), std::pair("--plot ", o.plot)}) {
    for (const std::string& input : inputs) {
      if (same_file(output, input))
        throw CLI::ValidationError(name + output, "would overwrite " + input + ", which is read; name another");
      if (lies_in(output, input))
        throw CLI::ValidationError(name + output,
                                   "lies in " + input + ", all files of which are read; name one elsewhere");
    }
  }
}

}  // namespace

std::variant<Options, int> parse_options(int argc, char** argv) {
  CLI::App app{"tutti-train: data-parallel training; the gradients are averaged by ncclAllReduce.", "tutti-train"};
  app.footer(kExamples);
  app.failure_message(mistake_text);
  Options options;
  add_data_options(app, options);
  add_rank_options(app, options);
  add_training_options(app, options);
  add_report_options(app, options);
  try {
    app.parse(argc, argv);
    if (const CLI::Option* file = first_empty(app, {"--images", "--labels", "--text", "--log", "--plot"})) {
      throw CLI::ValidationError(file->get_name(), "is empty; name a file");
    }
    fill_defaults(app, options);
    if (options.model == ModelKind::kMlp && options.images.empty()) {
      throw CLI::ValidationError("--model mlp", "needs --images FILE and --labels FILE");
    }
    if (options.model == ModelKind::kLm && !options.images.empty()) {
      throw CLI::ValidationError("--model lm", "reads --text, not --images");
    }
    if (options.device == DeviceKind::kHost && options.ranks_per_gpu > 1) {
      throw CLI::ValidationError("--ranks-per-gpu", "is for --device cuda");
    }
    if (options.log == "-" || options.plot == "-") {
      throw CLI::ValidationError(options.log == "-" ? "--log -" : "--plot -",
                                 "standard output has the progress; name a file");
    }
    if (same_file(options.log, options.plot)) {
      throw CLI::ValidationError("--plot " + options.plot, "is --log's file; name another");
    }
    if (options.model == ModelKind::kMlp && app.count("--text") > 0) {
      throw CLI::ValidationError("--model mlp", "reads --images and --labels, not --text");
    }
    check_used(app, options);
    check_outputs(options);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  }
  return options;
}

}  // namespace tutti::trainer
