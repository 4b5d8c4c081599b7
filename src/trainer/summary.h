// What a person reads at the end of a run.
#pragma once

#include "trainer/dataset.h"
#include "trainer/journal.h"
#include "trainer/language_model.h"

namespace tutti::trainer {

void print_image_summary(const HeldOut& held_out, double seconds);

/// Bits per byte against a model without context, and a text the model writes. `parameters`: the model's back end's.
Problem print_text_summary(const HeldOut& held_out, double seconds, const TextDataset& dataset, LanguageModel& model,
                           const float* parameters, std::uint64_t seed);

}  // namespace tutti::trainer
