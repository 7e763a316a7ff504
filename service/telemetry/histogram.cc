#include "service/telemetry/histogram.h"

namespace eta {

const Buckets& FirstTokenBuckets() {
  static const Buckets buckets{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                               1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
  return buckets;
}

const Buckets& InterTokenBuckets() {
  static const Buckets buckets{.001, .002, .004, .006, .008, .01, .015, .02, .025, .03, .04,
                               .06,  .08,  .1,   .15,  .2,   .4,  .8,   1,   2.5,  5,   10};
  return buckets;
}

const Buckets& RequestBuckets() {
  static const Buckets buckets{.005, .01, .025, .05, .1, .2, .3,  .5,  .8,  1,  1.5,
                               2.5,  5,   10,   20,  30, 60, 120, 240, 480, 960};
  return buckets;
}

const Buckets& StepBuckets() {
  static const Buckets buckets{.0001, .00025, .0005, .001, .002, .003, .004, .006, .008, .01, .015,
                               .02,   .03,    .05,   .075, .1,   .2,   .4,   .8,   1.6,  5};
  return buckets;
}

const Buckets& CalibrationBuckets() {
  static const Buckets buckets{.1, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 240, 480, 900, 1800, 3600};
  return buckets;
}

const Buckets& CompileBuckets() {
  static const Buckets buckets{.005, .01, .02, .05, .1, .2, .5, 1, 2, 3, 5, 10, 20, 60};
  return buckets;
}

const Buckets& MaskBuckets() {
  static const Buckets buckets{.00001, .00002, .00005, .0001, .0002, .0005, .001,
                               .002,   .005,   .01,    .02,   .05,   .1};
  return buckets;
}

const Buckets& RatioBuckets() {
  static const Buckets buckets{.01, .02, .05, .075, .1, .15, .2, .25, .3, .4, .5, .6, .8, 1};
  return buckets;
}

const Buckets& MassBuckets() {
  static const Buckets buckets{.5,  .6,  .7,  .8,  .85, .9,   .92,  .94,
                               .95, .96, .97, .98, .99, .995, .999, 1};
  return buckets;
}

const Buckets& TokenBuckets() {
  static const Buckets buckets{1,   2,    4,    8,    16,   32,    64,    128,   256,
                               512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
  return buckets;
}

const Buckets& BatchBuckets() {
  static const Buckets buckets{1,   2,   4,    8,    16,   32,   64,   128,
                               256, 512, 1024, 2048, 4096, 8192, 16384};
  return buckets;
}

}  // namespace eta
