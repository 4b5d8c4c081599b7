// src/pch/standard.h and Catch2, for the same reason.
#ifndef TUTTI_PCH_CATCH_H
#define TUTTI_PCH_CATCH_H

#include <catch2/catch.hpp>

#include "../../src/pch/standard.h"

#endif
