// Clang's thread-safety annotations. They say which mutex guards a field and which function needs
// it; a Clang build refuses code that breaks them (-Werror=thread-safety). Other compilers see
// nothing. The mutex that carries them is in engine/base/mutex.h.
#pragma once

// Abseil defines some of these names too, in headers that anything may include later.
#include "absl/base/thread_annotations.h"
#undef GUARDED_BY
#undef PT_GUARDED_BY
#undef NO_THREAD_SAFETY_ANALYSIS

#ifdef __clang__
#define ETA_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define ETA_THREAD_ANNOTATION(x)
#endif

// Of a field: it is read and written with the mutex held. PT_: what it points to is.
#define GUARDED_BY(x) ETA_THREAD_ANNOTATION(guarded_by(x))
#define PT_GUARDED_BY(x) ETA_THREAD_ANNOTATION(pt_guarded_by(x))

// Of a function, or of a lambda after its parameters: the caller holds the mutex, or does not.
#define REQUIRES(...) ETA_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) ETA_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

// Of a mutex and of what locks it.
#define CAPABILITY(x) ETA_THREAD_ANNOTATION(capability(x))
#define SCOPED_CAPABILITY ETA_THREAD_ANNOTATION(scoped_lockable)
#define ACQUIRE(...) ETA_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define RELEASE(...) ETA_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) ETA_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))

// Of a function whose locking the analysis cannot follow; say why beside it.
#define NO_THREAD_SAFETY_ANALYSIS ETA_THREAD_ANNOTATION(no_thread_safety_analysis)
