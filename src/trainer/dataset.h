// Samples to learn from: numbered, in two parts (training and held out), gathered into batches.
#pragma once

#include "trainer/array.h"
#include "trainer/idx.h"
#include "trainer/outcome.h"
#include "trainer/text.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tutti::trainer {

/// Samples side by side. A model reads `features` or `bytes`, whichever its data set fills.
struct Batch {
  std::size_t samples = 0;
  Array<float> features;            ///< [samples, feature_count]
  std::vector<std::uint8_t> bytes;  ///< [samples, context]
  std::vector<std::uint8_t> labels;
};

/// Sample numbers are below 2^32.
using SampleIds = std::vector<std::uint32_t>;

class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Replaces what `batch` holds by the samples `ids`.
  virtual void gather(std::span<const std::uint32_t> ids, Batch& batch) const = 0;

  /// Of the samples and of which are held out.
  virtual std::uint64_t hash() const = 0;

  const SampleIds& training() const { return training_; }
  const SampleIds& held_out() const { return held_out_; }

 protected:
  std::uint64_t hash_of_ids() const;

  SampleIds training_, held_out_;
};

/// Images and their classes. Pixels become floats from 0 to 1. Held out: a random choice that depends on the seed alone.
class ImageDataset : public Dataset {
 public:
  static Outcome<ImageDataset> load(const std::string& images_path, const std::string& labels_path, double holdout,
                                    std::uint64_t seed);

  void gather(std::span<const std::uint32_t> ids, Batch& batch) const override;
  std::uint64_t hash() const override;
  std::size_t feature_count() const { return images_.bytes_per_item(); }
  std::size_t class_count() const { return class_count_; }

 private:
  IdxArray images_, labels_;
  std::size_t class_count_ = 0;
};

/// Text: a sample is a byte (the label) and the `context` bytes before it. Held out: whole blocks of kBlockBytes labels, spread
/// evenly over the text; a training sample's context may look back into a held-out block, its label never lies in one.
class TextDataset : public Dataset {
 public:
  static constexpr std::size_t kBlockBytes = 1024;

  static Outcome<TextDataset> load(const std::vector<std::string>& paths, std::size_t context, double holdout);
  /// The same from bytes at hand.
  static Outcome<TextDataset> split(Text text, std::size_t context, double holdout);

  void gather(std::span<const std::uint32_t> ids, Batch& batch) const override;
  std::uint64_t hash() const override;
  std::size_t context() const { return context_; }
  const Text& text() const { return text_; }

 private:
  Text text_;
  std::size_t context_ = 0;
};

}  // namespace tutti::trainer
