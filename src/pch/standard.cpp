// Has standard.h precompiled (src/meson.build).
