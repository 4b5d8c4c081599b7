// The fat binary of kernels.cu, as it is embedded in tutti-train.
#pragma once

extern "C" [[gnu::visibility("hidden")]] const unsigned char tutti_trainer_image[];
