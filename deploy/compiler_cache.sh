# shellcheck shell=bash
# To be sourced, with the root of the sources that are built then: what the compiler's cache keeps
# serves every clone, whatever folder it is in.
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
  export CCACHE_BASEDIR=$1 CCACHE_NOHASHDIR=1
fi
