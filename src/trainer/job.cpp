#include "trainer/job.h"

#include "base/standard_output.h"
#include "trainer/cuda/cuda_backend.h"
#include "trainer/host_backend.h"
#include "trainer/image_classifier.h"
#include "trainer/journal.h"
#include "trainer/language_model.h"
#include "trainer/replicas.h"
#include "trainer/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <new>
#include <optional>
#include <utility>

namespace tutti::trainer {
namespace {

constexpr std::size_t kByteValues = 256;  ///< what a language model chooses from

/// What `part` says, or has thrown: from a thread that would end all ranks.
template <class Part>
Problem caught(const Part& part) {
  try {
    return part();
  } catch (const std::bad_alloc&) {
    return Failure{"out of memory"};
  } catch (const std::exception& thrown) {
    return Failure{thrown.what()};
  }
}

}  // namespace

Outcome<Job> Job::prepare(const Options& options) {
  Job job;
  job.options_ = options;
  if (const auto problem = caught([&] { return job.read_data(); }))
    return Failure{fmt::format("reading the data: {}", problem->message)};
  return job;
}

Problem Job::read_data() {
  if (options_.model == ModelKind::kMlp) {
    auto images = ImageDataset::load(options_.images, options_.labels, options_.holdout, options_.seed);
    if (!images) return images.failure();
    images_ = std::make_unique<ImageDataset>(std::move(*images));
    dataset_ = images_.get();
  } else {
    auto text = TextDataset::load(options_.text, options_.context, options_.holdout);
    if (!text) return text.failure();
    text_ = std::make_unique<TextDataset>(std::move(*text));
    dataset_ = text_.get();
  }
  return {};
}

Outcome<std::unique_ptr<Backend>> Job::make_backend(int local_rank) const {
  if (options_.device == DeviceKind::kHost) return HostBackend::make();
  return make_cuda_backend(local_rank / options_.ranks_per_gpu);
}

std::unique_ptr<Model> Job::make_model(Backend& backend) const {
  if (text_) return std::make_unique<LanguageModel>(backend, options_.context, options_.embedding, options_.hidden);
  return std::make_unique<ImageClassifier>(backend, layer_sizes());
}

/// From what goes into the first one to the classes.
std::vector<std::size_t> Job::layer_sizes() const {
  std::vector<std::size_t> sizes{text_ ? options_.context * options_.embedding : images_->feature_count()};
  sizes.insert(sizes.end(), options_.hidden.begin(), options_.hidden.end());
  sizes.push_back(text_ ? kByteValues : images_->class_count());
  return sizes;
}

double Job::bytes_of_rank(int ranks) const {
  const std::vector<std::size_t> sizes = layer_sizes();
  const auto real = [](std::size_t count) { return static_cast<double>(count); };
  double parameters = text_ ? real(kByteValues * options_.embedding) : 0;
  double between = text_ ? real(sizes.front()) : 0;  // of each sample, forward; as much again backward
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
    parameters += (real(sizes[i]) + 1) * real(sizes[i + 1]);
    between += real(sizes[i + 1]);
  }
  // Themselves, their gradients, and a copy whose hash the ranks compare; what the optimiser keeps; a part's gradients.
  const int arrays = 3 + (options_.optimiser == OptimiserKind::kAdam ? 2 : 1) + (options_.accumulate > 1 ? 1 : 0);
  const double samples =
      real(std::min(options_.batch, dataset_->training().size())) / ranks / real(options_.accumulate);
  return sizeof(float) * (arrays * parameters + 2 * between * samples) +
         sizeof(std::uint32_t) * real(dataset_->training().size());  // their order
}

std::string memory_text(double bytes) {
  return bytes < 1e9 ? fmt::format("{:.0f} MB", std::ceil(bytes / 1e6)) : fmt::format("{:.1f} GB", bytes / 1e9);
}

/// Of a rank; each of those before it.
struct Job::Parts {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::optional<Replicas> replicas;
  std::unique_ptr<Trainer> trainer;
};

int Job::run_rank(const Place& place, const ncclUniqueId& id) const {
  const auto parts = std::make_shared<Parts>();
  const auto problem = caught([&] { return live(*parts, place, id); });
  if (!problem) return 0;
  if (parts->replicas) parts->replicas->give_up();  // before the trainer's arrays go
  complain("tutti-train: rank {}: {}\n", place.rank, problem->message);
  if (place.kept != nullptr) place.kept->add(parts);
  return 1;
}

Problem Job::live(Parts& parts, const Place& place, const ncclUniqueId& id) const {
  auto backend = make_backend(place.local_rank);
  if (!backend) return backend.failure();
  parts.backend = std::move(*backend);
  parts.model = make_model(*parts.backend);
  auto replicas = Replicas::join(place.rank, place.size, id, *parts.backend);
  if (!replicas) return replicas.failure();
  parts.replicas.emplace(std::move(*replicas));
  auto trainer = Trainer::make(options_, *dataset_, *parts.backend, *parts.model, *parts.replicas);
  if (!trainer) return trainer.failure();
  parts.trainer = std::move(*trainer);
  return train(*parts.backend, *parts.model, *parts.replicas, *parts.trainer);
}

Problem Job::train(const Backend& backend, Model& model, Replicas& replicas, Trainer& trainer) const {
  std::optional<Journal> journal;  // rank 0's
  if (replicas.rank() == 0) {
    auto opened = Journal::open(options_, trainer.steps());
    if (!opened) return opened.failure();
    journal.emplace(std::move(*opened));
    print_heading(backend, model, trainer.steps(), replicas.size());
  }

  const auto start = std::chrono::steady_clock::now();
  if (auto problem = trainer.run(journal ? &*journal : nullptr)) return problem;
  if (trainer.ended_early()) return replicas.leave();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  const auto held_out = trainer.evaluate_held_out();
  if (!held_out) return held_out.failure();
  if (auto problem = replicas.leave()) return problem;
  if (!journal) return {};
  // A file that cannot be written costs nobody the summary.
  auto unwritten = journal->finish(*held_out);
  auto unsampled = print_summary(*held_out, seconds, model, trainer.parameters());
  return unwritten ? std::move(unwritten) : std::move(unsampled);
}

void Job::print_heading(const Backend& backend, const Model& model, std::int64_t steps, int size) const {
  say("{}: {} parameters\n", model.describe(), model.layout().parameter_count());
  if (text_) {
    say("{} bytes of text in {} file{}, {} of them held out\n", text_->text().bytes.size(), text_->text().file_count,
        text_->text().file_count == 1 ? "" : "s", dataset_->held_out().size());
  } else {
    say("{} images of {} classes, {} of them held out\n", dataset_->training().size() + dataset_->held_out().size(),
        images_->class_count(), dataset_->held_out().size());
  }
  const bool on_host = options_.device == DeviceKind::kHost;
  say("{} rank{} ({}{}), {} steps of {} samples\n\n", size, size == 1 ? "" : "s",
      options_.threads ? "threads" : "processes",
      on_host ? fmt::format(", {} of memory each or more", memory_text(bytes_of_rank(size)))
              : fmt::format(" on {}", backend.name()),
      steps, std::min(options_.batch, dataset_->training().size()));
  std::fflush(stdout);
}

Problem Job::print_summary(const HeldOut& held_out, double seconds, Model& model, const float* parameters) const {
  if (text_) {
    return print_text_summary(held_out, seconds, *text_, static_cast<LanguageModel&>(model), parameters, options_.seed);
  }
  print_image_summary(held_out, seconds);
  return {};
}

}  // namespace tutti::trainer
