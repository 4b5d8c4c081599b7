#include "trainer/dataset.h"

#include "trainer/parameter_hash.h"
#include "trainer/sharding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tutti::trainer {

std::uint64_t Dataset::hash_of_ids() const { return hash_all_on(hash_all_on(kHashOfNothing, training_), held_out_); }

Outcome<ImageDataset> ImageDataset::load(const std::string& images_path, const std::string& labels_path, double holdout,
                                         std::uint64_t seed) {
  auto images = read_idx(images_path, 3);
  if (!images) return images.failure();
  auto labels = read_idx(labels_path, 1);
  if (!labels) return labels.failure();
  if (images->count() != labels->count()) {
    return Failure{fmt::format("{} holds {} images, but {} holds {} labels; they must belong together", images_path,
                               images->count(), labels_path, labels->count())};
  }
  ImageDataset set;
  set.images_ = std::move(*images);
  set.labels_ = std::move(*labels);
  set.class_count_ = std::size_t{*std::max_element(set.labels_.values.begin(), set.labels_.values.end())} + 1;

  SampleIds order = shuffled(set.images_.count(), seed);
  const auto held_out_count = static_cast<std::size_t>(std::floor(holdout * static_cast<double>(order.size())));
  set.held_out_.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(held_out_count));
  set.training_.assign(order.begin() + static_cast<std::ptrdiff_t>(held_out_count), order.end());
  return set;
}

void ImageDataset::gather(std::span<const std::uint32_t> ids, Batch& batch) const {
  const std::size_t width = feature_count();
  batch.samples = ids.size();
  if (batch.features.size() < ids.size() * width) batch.features = Array<float>(ids.size() * width);
  batch.labels.resize(ids.size());
  for (std::size_t s = 0; s < ids.size(); ++s) {
    const std::uint8_t* pixels = images_.values.data() + ids[s] * width;
    float* row = batch.features.data() + s * width;
    for (std::size_t p = 0; p < width; ++p) row[p] = static_cast<float>(pixels[p]) / 255.0f;
    batch.labels[s] = labels_.values[ids[s]];
  }
}

std::uint64_t ImageDataset::hash() const {
  return hash_all_on(hash_all_on(hash_of_ids(), images_.values), labels_.values);
}

Outcome<TextDataset> TextDataset::load(const std::vector<std::string>& paths, std::size_t context, double holdout) {
  auto text = read_text(paths);
  if (!text) return text.failure();
  return split(std::move(*text), context, holdout);
}

Outcome<TextDataset> TextDataset::split(Text text, std::size_t context, double holdout) {
  if (text.bytes.size() <= context) {
    return Failure{fmt::format("the text has {} bytes; a context of {} needs at least {}", text.bytes.size(), context,
                               context + 1)};
  }
  TextDataset set;
  set.text_ = std::move(text);
  set.context_ = context;
  for (std::size_t position = context; position < set.text_.bytes.size(); ++position) {
    const std::size_t whole_blocks = position / kBlockBytes;
    const auto block = static_cast<double>(whole_blocks);
    // Block b is held out when b * holdout passes a whole number: every tenth block for 0.1, the first one never.
    const bool held_out = std::floor((block + 1) * holdout) > std::floor(block * holdout);
    (held_out ? set.held_out_ : set.training_).push_back(static_cast<std::uint32_t>(position));
  }
  if (set.training_.empty()) return Failure{"the text is too short to leave anything to train on; name more text"};
  return set;
}

void TextDataset::gather(std::span<const std::uint32_t> ids, Batch& batch) const {
  batch.samples = ids.size();
  batch.bytes.resize(ids.size() * context_);
  batch.labels.resize(ids.size());
  for (std::size_t s = 0; s < ids.size(); ++s) {
    std::copy_n(text_.bytes.data() + ids[s] - context_, context_, batch.bytes.data() + s * context_);
    batch.labels[s] = text_.bytes[ids[s]];
  }
}

std::uint64_t TextDataset::hash() const { return hash_all_on(hash_of_ids(), text_.bytes); }

}  // namespace tutti::trainer
