// standard.h as precompiled for what is compiled for size (meson.build).
#pragma once
#include "standard.h"
