// Has catch.h precompiled (tests/meson.build).
