// Stand-in for the header that a CPU build of torch does not generate.
#pragma once
#define C10_CUDA_BUILD_SHARED_LIBS
